import type { SeenUse, VolumeId } from '#core/model.ts';
import { isErrno, isFull, UnfitFile } from '../shelf/files.ts';
import type { NfsFiles } from './files.ts';
import { decode, isHostId, recordLimit, unknownHost, writerFile } from './uses-format.ts';

/** A host that has not renewed its record for so long, by the server's clock, is silent. */
export const staleMs = 5 * 60_000;

/** Use records as they lie there. */
export interface SeenUses {
  folderOf(id: VolumeId): string;
  writerOf(id: VolumeId): string;
  /** The host that alone may write. Undefined: there is none. Empty: who began to say so has not finished. */
  writer(id: VolumeId): Promise<string | undefined>;
  /** Nobody uses it: one call. */
  list(id: VolumeId): Promise<readonly SeenUse[]>;
  /** The same for who holds the volume; what a crash left there of nobody's is removed. */
  listHeld(id: VolumeId): Promise<readonly SeenUse[]>;
  /** If nothing is in it. */
  removeFolder(id: VolumeId): Promise<void>;
}

export interface SeenUsesParts {
  readonly files: NfsFiles;
  /** `.stowage/users` */
  readonly folder: string;
  readonly scratch: () => string;
}

export function createSeenUses({ files, folder, scratch }: SeenUsesParts): SeenUses {
  const folderOf = (id: VolumeId): string => `${folder}/${id}`;
  const writerOf = (id: VolumeId): string => `${folderOf(id)}/${writerFile}`;

  /** The server's time, from a file of our own that it has just written. Undefined: it has no room for one. */
  async function now(): Promise<number | undefined> {
    const path = scratch();
    try {
      const told = await files.write(path, '.');
      return told === 0 ? ((await files.attributes(path))?.mtime ?? 0) * 1000 : told;
    } catch (cause) {
      if (!isFull(cause)) throw cause;
      return undefined;
    } finally {
      await files.unlink(path).catch(() => false);
    }
  }

  /** Undefined: it is not there. Null: it is, and cannot be read. */
  async function textOf(path: string): Promise<string | undefined | null> {
    try {
      return (await files.read(path, recordLimit)).toString('utf8');
    } catch (cause) {
      if (isErrno(cause, 'ENOENT')) return undefined;
      if (cause instanceof UnfitFile || isErrno(cause, 'EACCES', 'EPERM', 'EIO')) return null;
      throw cause;
    }
  }

  async function writer(id: VolumeId): Promise<string | undefined> {
    const text = await textOf(writerOf(id));
    if (text === undefined || text === '') return text;
    return text !== null && isHostId(text) ? text : unknownHost;
  }

  async function read(
    id: VolumeId,
    host: string,
    isWriter: boolean,
    time: number | undefined,
  ): Promise<SeenUse | undefined> {
    const path = `${folderOf(id)}/${host}`;
    // Who may write uses it, also before it has said what for, or after it took that back.
    const found = (await files.attributes(path)) ?? (isWriter ? await files.attributes(writerOf(id)) : undefined);
    if (found === undefined) return undefined;
    const renewedAt = found.mtime * 1000 + Math.floor(found.mtimeNs / 1e6);
    const seen = { writer: isWriter, renewedAt, stale: time !== undefined && time - renewedAt > staleMs };
    const text = await textOf(path);
    if (text === undefined && !isWriter) return undefined;
    return { ...decode(host, text ?? ''), ...seen };
  }

  async function usesIn(id: VolumeId, names: readonly string[]): Promise<readonly SeenUse[]> {
    const holder = names.includes(writerFile) ? ((await writer(id)) ?? '') : '';
    const hosts = new Set([...names.filter(isHostId), ...(holder === '' ? [] : [holder])]);
    if (hosts.size === 0) return [];
    const time = await now();
    const uses = await Promise.all([...hosts].map((host) => read(id, host, host === holder, time)));
    return uses.filter((use) => use !== undefined);
  }

  async function removeFolder(id: VolumeId): Promise<void> {
    await files.rmdir(folderOf(id)).catch((cause: unknown) => {
      if (!isErrno(cause, 'ENOENT', 'ENOTEMPTY', 'EEXIST', 'EIO')) throw cause;
    });
  }

  const namesOf = (id: VolumeId): Promise<readonly string[] | undefined> => absentIsFine(files.names(folderOf(id)));

  return {
    ...{ folderOf, writerOf, writer, removeFolder },
    list: async (id) => usesIn(id, (await namesOf(id)) ?? []),
    listHeld: async (id) => {
      const names = await namesOf(id);
      if (names === undefined) return [];
      const uses = await usesIn(id, names);
      if (uses.length > 0) return uses;
      if (names.includes(writerFile)) await absentIsFine(files.unlink(writerOf(id)));
      await removeFolder(id);
      return [];
    },
  };
}

export async function absentIsFine<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return undefined;
    throw cause;
  }
}
