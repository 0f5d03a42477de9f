import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import type { NodeName, SeenUse, VolumeId } from '#core/model.ts';
import { isFull, UnsuitableFile } from '../file-store/files.ts';
import type { NfsFiles } from './files.ts';
import { decode, isHostId, recordLimit, unknownHost, writerFile } from './uses-format.ts';

/** A host that has not renewed its record for so long, by the server's clock, is silent. */
export const staleMs = 5 * 60_000;

/** What is read of one volume, whatever a server says that there is: so many hosts, and so much of who is on them. */
export const maxHosts = 500;
export const maxTotalText = 4 * 1024 * 1024;
/** At once. */
const maxConcurrentReads = 16;
/** Stands for the hosts that were not read. No host can have this id, so none is taken for it. */
export const unreadHosts = '*';

/** Use records as they lie there. */
export interface UseRecordReader {
  folderOf(id: VolumeId): string;
  writerOf(id: VolumeId): string;
  /** The host that alone may write. Undefined: there is none. Empty: who began to say so has not finished. */
  writer(id: VolumeId): Promise<string | undefined>;
  /** Nobody uses it: one call. Of more hosts than can be read, the last entry tells how many there are. */
  list(id: VolumeId): Promise<readonly SeenUse[]>;
  /** The same for who holds the volume; what a crash left there of nobody's is removed. */
  listHeld(id: VolumeId): Promise<readonly SeenUse[]>;
  /** If nothing is in it. */
  removeFolder(id: VolumeId): Promise<void>;
}

export interface UseRecordReaderParts {
  readonly files: NfsFiles;
  /** `.stowage/users` */
  readonly folder: string;
  readonly scratchPath: () => string;
}

export function createUseRecordReader({ files, folder, scratchPath }: UseRecordReaderParts): UseRecordReader {
  const folderOf = (id: VolumeId): string => `${folder}/${id}`;
  const writerOf = (id: VolumeId): string => `${folderOf(id)}/${writerFile}`;

  /** The server's time, from a file of our own that it has just written. Undefined: it has no room for one. */
  async function now(): Promise<number | undefined> {
    const path = scratchPath();
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
      if (cause instanceof UnsuitableFile || isErrno(cause, 'EACCES', 'EPERM', 'EIO')) return null;
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
  ): Promise<(RecordStatus & { readonly text: string }) | undefined> {
    const path = `${folderOf(id)}/${host}`;
    // Who may write uses it, also before it has said what for, or after it took that back.
    const found = (await files.attributes(path)) ?? (isWriter ? await files.attributes(writerOf(id)) : undefined);
    if (found === undefined) return undefined;
    const renewedAt = found.mtime * 1000 + Math.floor(found.mtimeNs / 1e6);
    const stale = time !== undefined && time - renewedAt > staleMs;
    const text = await textOf(path);
    if (text === undefined && !isWriter) return undefined;
    return { writer: isWriter, renewedAt, stale, text: text ?? '' };
  }

  async function usesIn(id: VolumeId, names: readonly string[]): Promise<readonly SeenUse[]> {
    const holder = names.includes(writerFile) ? ((await writer(id)) ?? '') : '';
    if (holder === '' && !names.some(isHostId)) return [];
    const time = await now();
    const uses = new Map<string, SeenUse>();
    let left = maxTotalText;
    let unread = 0;
    function* hosts(): Iterable<string> {
      if (holder !== '') yield holder;
      for (const name of names) {
        if (!isHostId(name) || name === holder) continue;
        if (uses.size < maxHosts) yield name;
        else unread++;
      }
    }
    await eachBounded(hosts(), maxConcurrentReads, async (host) => {
      const found = await read(id, host, host === holder, time);
      if (found === undefined) return;
      const { text, ...seen } = found;
      // That the host uses the volume is what counts.
      const isMuch = text.length > left;
      if (!isMuch) left -= text.length;
      uses.set(host, { ...decode(host, isMuch ? '' : text), ...seen });
    });
    const all = [...uses.values()].sort((a, b) => (a.host < b.host ? -1 : 1));
    return unread === 0 ? all : [...all, manyOthers(unread, time)];
  }

  async function removeFolder(id: VolumeId): Promise<void> {
    await files.rmdir(folderOf(id)).catch((cause: unknown) => {
      if (!isErrno(cause, 'ENOENT', 'ENOTEMPTY', 'EEXIST', 'EIO')) throw cause;
    });
  }

  const namesOf = (id: VolumeId): Promise<readonly string[] | undefined> =>
    undefinedIfAbsent(files.names(folderOf(id)));

  return {
    folderOf,
    writerOf,
    writer,
    removeFolder,
    list: async (id) => usesIn(id, (await namesOf(id)) ?? []),
    listHeld: async (id) => {
      const names = await namesOf(id);
      if (names === undefined) return [];
      const uses = await usesIn(id, names);
      if (uses.length > 0) return uses;
      if (names.includes(writerFile)) await undefinedIfAbsent(files.unlink(writerOf(id)));
      await removeFolder(id);
      return [];
    },
  };
}

type RecordStatus = Pick<SeenUse, 'writer' | 'renewedAt' | 'stale'>;

const manyOthers = (count: number, time = 0): SeenUse => ({
  host: unreadHosts,
  node: `${count} more hosts` as NodeName,
  users: [],
  writer: false,
  renewedAt: time,
  stale: false,
});

export async function undefinedIfAbsent<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return undefined;
    throw cause;
  }
}
