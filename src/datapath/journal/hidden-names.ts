import type { HiddenName } from '../ports.ts';
import { hiddenNameOwner, maxNameLength, record } from './layout.ts';
import type { NodeRecords } from './node-records.ts';

/** Hidden names of files removed while open. Each has its own record, which names its file. */
export interface HiddenNames {
  /** Returns the record's id. */
  put(file: number, hidden: HiddenName): number;
  get(id: number): HiddenName;
  isReferenced(id: number): boolean;
}

export function createHiddenNames(records: NodeRecords, takeRecord: () => number): HiddenNames {
  const { hasRecord, get, set, setOwner, view, handleOf, putHandle } = records;
  return {
    put: (file, { directory, name }) => {
      if (Buffer.byteLength(name) > maxNameLength) throw new RangeError('the hidden name is too long');
      const id = takeRecord();
      putHandle(id, directory);
      // The file it belongs to is stored in the field that holds the opens of a node.
      set(id, record.opens, file);
      const nameLength = view(id, record.name + 4, maxNameLength).write(name);
      set(id, record.name, nameLength);
      setOwner(id, hiddenNameOwner);
      return id;
    },
    get: (id) => ({
      directory: Buffer.from(handleOf(id)),
      name: view(id, record.name + 4, get(id, record.name)).toString(),
    }),
    isReferenced: (id) => {
      const file = get(id, record.opens);
      return hasRecord(file) && get(file, record.owner) !== 0 && get(file, record.hidden) === id;
    },
  };
}
