import { type ErrnoName, errno } from '#wire/fuse/errno.ts';
import type { Nodes } from '../ports.ts';
import { lossTold, record } from './layout.ts';
import type { NodeRecords } from './node-records.ts';

/** By number. */
const errors = new Map(Object.entries(errno).map(([name, number]) => [number as number, name as ErrnoName]));

/** The loss of acknowledged data of a node, in one word of its record. */
export function createLostData(
  { get, set }: NodeRecords,
  isOurs: (id: number) => boolean,
): Pick<Nodes, 'setLost' | 'lost' | 'setLossTold' | 'isLossTold'> {
  const wordOf = (id: number): number => (isOurs(id) ? get(id, record.lost) : 0);
  return {
    setLost: (id, code) => {
      if (isOurs(id)) set(id, record.lost, code === undefined ? 0 : errno[code]);
    },
    lost: (id) => {
      const number = wordOf(id) % lossTold;
      return number === 0 ? undefined : (errors.get(number) ?? 'EIO');
    },
    setLossTold: (id) => {
      const number = wordOf(id);
      if (number > 0 && number < lossTold) set(id, record.lost, number + lossTold);
    },
    isLossTold: (id) => wordOf(id) >= lossTold,
  };
}
