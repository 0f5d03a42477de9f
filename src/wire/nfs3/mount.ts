import type { Procedure } from '../rpc/procedure.ts';
import { XdrError, type XdrReader } from '../xdr/reader.ts';
import { namesByStatus } from './status.ts';
import { type FileHandle, maxPathBytes, readHandle } from './structures.ts';

export const mountProgram = 100005;
export const mountVersion = 3;

/** RFC 1813, section 5.1.5. */
export const mountStatus = {
  PERM: 1,
  NOENT: 2,
  IO: 5,
  ACCES: 13,
  NOTDIR: 20,
  INVAL: 22,
  NAMETOOLONG: 63,
  NOTSUPP: 10004,
  SERVERFAULT: 10006,
} as const;

export type MountStatusName = keyof typeof mountStatus;

const names = namesByStatus(mountStatus);

/** The MOUNT service returned an error. */
export class MountError extends Error {
  override readonly name = 'MountError';
  readonly status: number;
  readonly statusName: MountStatusName | undefined;
  constructor(path: string, status: number) {
    const known = names.get(status);
    super(`MNT ${path}: ${known === undefined ? `status ${status}` : `MNT3ERR_${known}`}`);
    this.status = status;
    this.statusName = known;
  }
}

const mountProcedure = (number: number, name: string) => ({
  program: mountProgram,
  version: mountVersion,
  number,
  name,
});

export interface MountResult {
  readonly handle: FileHandle;
  /** The auth flavors that the server accepts for the export, in its order of preference. */
  readonly flavors: readonly number[];
}

/** Longer lists are rejected. */
const maxFlavors = 64;
const maxListEntries = 10_000;

export const mnt: Procedure<string, MountResult> = {
  ...mountProcedure(1, 'MNT'),
  encode: (writer, path) => {
    writer.string(path);
    return undefined;
  },
  decode: (reader, path) => {
    const status = reader.u32();
    if (status !== 0) throw new MountError(path, status);
    const handle = readHandle(reader);
    const count = reader.u32();
    if (count > maxFlavors) throw new XdrError(`${count} kinds of authentication`);
    return { handle, flavors: Array.from({ length: count }, () => reader.u32()) };
  },
};

/** Tells the server that the client has unmounted; the server keeps a list for administrators. */
export const unmnt: Procedure<string, undefined> = {
  ...mountProcedure(3, 'UMNT'),
  encode: (writer, path) => {
    writer.string(path);
    return undefined;
  },
  decode: () => undefined,
};

export interface Export {
  readonly path: string;
  /** The clients that may mount it; empty: all. */
  readonly clients: readonly string[];
}

function readList<T>(reader: XdrReader, readEntry: () => T): T[] {
  const list: T[] = [];
  while (reader.bool()) {
    if (list.length === maxListEntries) throw new XdrError('a list without end');
    list.push(readEntry());
  }
  return list;
}

export const listExports: Procedure<undefined, readonly Export[]> = {
  ...mountProcedure(5, 'EXPORT'),
  encode: () => undefined,
  decode: (reader) =>
    readList(reader, () => ({
      path: reader.string(maxPathBytes),
      clients: readList(reader, () => reader.string(maxPathBytes)),
    })),
};
