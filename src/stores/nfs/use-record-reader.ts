import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import type { NodeName, SeenUse, VolumeId } from '#core/model.ts';
import { isFull, UnsuitableFile } from '../file-store/files.ts';
import type { NfsFiles } from './files.ts';
import { decodeUse, isHostId, maxRecordBytes, unknownHost, writerFile } from './uses-format.ts';

/** A record that its host has not renewed for this long, by the server's clock, is stale. */
export const staleAfterMs = 5 * 60_000;

/** Limits for one volume, whatever the server lists: number of hosts, and total size of their records. */
export const maxHosts = 500;
export const maxTotalChars = 4 * 1024 * 1024;
/** Concurrent reads. */
const maxConcurrentReads = 16;
/** Stands for the hosts whose records were not read. No host can have this id. */
export const unreadHosts = '*';

/** Reads the use records on the server. */
export interface UseRecordReader {
  folderOf(id: VolumeId): string;
  writerOf(id: VolumeId): string;
  /** The only host that may write. Undefined: there is none. Empty: a host has created the file and not yet written to it. */
  writer(id: VolumeId): Promise<string | undefined>;
  /** The hosts that use the volume. If no host does, this takes one call. If there are too many, the last entry counts the rest. */
  list(id: VolumeId): Promise<readonly SeenUse[]>;
  /** Like `list`. Call it with the volume locked: it also removes what a crash left behind. */
  listHeld(id: VolumeId): Promise<readonly SeenUse[]>;
  /** Removes the folder if it is empty. */
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

  /** The server's time, from a file that we write for this. Undefined: the server is full. */
  async function serverNow(): Promise<number | undefined> {
    const path = scratchPath();
    try {
      const writtenAt = await files.write(path, '.');
      return writtenAt === 0 ? ((await files.attributes(path))?.mtime ?? 0) * 1000 : writtenAt;
    } catch (cause) {
      if (!isFull(cause)) throw cause;
      return undefined;
    } finally {
      await files.unlink(path).catch(() => false);
    }
  }

  /** Undefined: absent. Null: it exists but cannot be read. */
  async function textOf(path: string): Promise<string | undefined | null> {
    try {
      return (await files.read(path, maxRecordBytes)).toString('utf8');
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
    // The writer uses the volume even if it has no record of users yet, or no longer.
    const found = (await files.attributes(path)) ?? (isWriter ? await files.attributes(writerOf(id)) : undefined);
    if (found === undefined) return undefined;
    const renewedAt = found.mtime * 1000 + Math.floor(found.mtimeNs / 1e6);
    const stale = time !== undefined && time - renewedAt > staleAfterMs;
    const text = await textOf(path);
    if (text === undefined && !isWriter) return undefined;
    return { writer: isWriter, renewedAt, stale, text: text ?? '' };
  }

  async function usesIn(id: VolumeId, names: readonly string[]): Promise<readonly SeenUse[]> {
    const writerHost = names.includes(writerFile) ? ((await writer(id)) ?? '') : '';
    if (writerHost === '' && !names.some(isHostId)) return [];
    const time = await serverNow();
    const uses = new Map<string, SeenUse>();
    let remainingChars = maxTotalChars;
    let unread = 0;
    function* hosts(): Iterable<string> {
      if (writerHost !== '') yield writerHost;
      for (const name of names) {
        if (!isHostId(name) || name === writerHost) continue;
        if (uses.size < maxHosts) yield name;
        else unread++;
      }
    }
    await eachBounded(hosts(), maxConcurrentReads, async (host) => {
      const found = await read(id, host, host === writerHost, time);
      if (found === undefined) return;
      const { text, ...seen } = found;
      // Beyond the limit, only record that the host uses the volume.
      const isTooMuch = text.length > remainingChars;
      if (!isTooMuch) remainingChars -= text.length;
      uses.set(host, { ...decodeUse(host, isTooMuch ? '' : text), ...seen });
    });
    const all = [...uses.values()].sort((a, b) => (a.host < b.host ? -1 : 1));
    return unread === 0 ? all : [...all, unreadHostsEntry(unread, time)];
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

const unreadHostsEntry = (count: number, time = 0): SeenUse => ({
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
