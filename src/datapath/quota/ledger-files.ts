import type { NfsClient } from '#wire/nfs3/client.ts';
import { readFully } from '#wire/nfs3/file-reader.ts';
import { listDirectory } from '#wire/nfs3/listing.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type Attributes, type FileHandle, fileType, stability } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { unlessAborted } from '../unless-aborted.ts';

/** The folder that the nodes of one volume share. Each call is one that a server does at once, or not at all. */
export interface LedgerFiles {
  names(): Promise<readonly string[]>;
  /** Undefined: there is none. */
  read(name: string): Promise<string | undefined>;
  /** Whole, and durably: who reads sees what was there before, or this. */
  write(name: string, text: string): Promise<void>;
  /** Absent is success. */
  remove(name: string): Promise<void>;
  /** Made by us: true. There already: false. */
  take(name: string, text: string): Promise<boolean>;
  /** Undefined: it is not there. What a file looks like; another look after each `renew`. */
  look(name: string): Promise<string | undefined>;
  /** Makes it look otherwise. Given what it looked like: only if it still does, and of several who try one succeeds. */
  renew(name: string, ifLooks?: string): Promise<boolean>;
}

export interface LedgerFilesParts {
  readonly nfs: NfsClient;
  readonly folder: FileHandle;
  /** As whom, until when: it is the store's folder, not the users'. */
  readonly options: CallOptions;
  /** The name of the file that is written before it gets its own: of nobody else. */
  readonly scratch: string;
  /** Something to be waited for before anything is changed: what a predecessor sent may still be done. */
  readonly ready?: (() => Promise<void> | undefined) | undefined;
}

const never = new AbortController().signal;

/** A record is a line; a longer file is not ours. */
const longest = 4096;
const mostNames = 100_000;
/** How often a file can be replaced between finding and reading it. */
const mostReplaced = 16;

export function createLedgerFiles({ nfs, folder, options, scratch, ready }: LedgerFilesParts): LedgerFiles {
  const drained = async (): Promise<void> => {
    const first = ready?.();
    if (first !== undefined) await unlessAborted(first, options.signal ?? never);
  };

  const find = async (name: string): Promise<{ handle: FileHandle; attributes: Attributes } | undefined> => {
    try {
      const { handle, attributes } = await nfs.lookup(folder, name, options);
      return { handle, attributes: attributes ?? (await nfs.getattr(handle, options)) };
    } catch (cause) {
      if (isNfsError(cause, 'NOENT', 'STALE')) return undefined;
      throw cause;
    }
  };

  async function fill(name: string, handle: FileHandle, text: string): Promise<void> {
    const data = Buffer.from(text);
    const { count } = await nfs.write(handle, 0, data, stability.fileSync, options);
    if (count !== data.length) throw new Error(`the server wrote ${count} of ${data.length} bytes of ${name}`);
  }

  async function replace(name: string, text: string): Promise<void> {
    await drained();
    const { handle } = await nfs.create(folder, scratch, { mode: 'unchecked', set: { mode: 0o600, size: 0 } }, options);
    await fill(scratch, handle, text);
    await nfs.rename({ directory: folder, name: scratch }, { directory: folder, name }, { ...options, meant: handle });
  }

  async function readFound(handle: FileHandle): Promise<string> {
    const into = Buffer.alloc(longest + 1);
    const count = await readFully(nfs, handle, 0, into, options);
    return count > longest ? '' : into.toString('utf8', 0, count);
  }

  return {
    names: async () => {
      const names: string[] = [];
      for await (const page of listDirectory(nfs, folder, { ...options, namesOnly: true, mostEntries: mostNames }))
        for (const { name } of page) names.push(name);
      return names;
    },
    read: async (name) => {
      for (let again = 1; ; again++) {
        const found = await find(name);
        if (found === undefined) return undefined;
        if (found.attributes.type !== fileType.regular) return '';
        try {
          return await readFound(found.handle);
        } catch (cause) {
          if (again >= mostReplaced || !isNfsError(cause, 'STALE', 'BADHANDLE', 'NOENT')) throw cause;
        }
      }
    },
    write: async (name, text) => {
      for (let again = 1; ; again++) {
        try {
          return await replace(name, text);
        } catch (cause) {
          // Who tidied up after a scan has taken it for a leftover.
          if (again >= mostReplaced || !isNfsError(cause, 'NOENT', 'STALE')) throw cause;
        }
      }
    },
    remove: async (name) => {
      await drained();
      const found = await find(name);
      if (found === undefined) return;
      try {
        await nfs.remove(folder, name, { ...options, meant: found.handle });
      } catch (cause) {
        if (!isNfsError(cause, 'NOENT')) throw cause;
      }
    },
    take: async (name, text) => {
      await drained();
      try {
        const { handle } = await nfs.create(folder, name, { mode: 'guarded', set: { mode: 0o600 } }, options);
        await fill(name, handle, text);
        return true;
      } catch (cause) {
        if (isNfsError(cause, 'EXIST')) return false;
        throw cause;
      }
    },
    look: async (name) => {
      const found = await find(name);
      return found && looksOf(found.attributes);
    },
    renew: async (name, ifLooks) => {
      await drained();
      const found = await find(name);
      if (found === undefined || (ifLooks !== undefined && looksOf(found.attributes) !== ifLooks)) return false;
      const { ctime: seconds, ctimeNs: nanoseconds } = found.attributes;
      try {
        const guard = ifLooks === undefined ? {} : { ifChangedAt: { seconds, nanoseconds } };
        await nfs.setattr(found.handle, { mtime: 'now' }, { ...options, ...guard });
        return true;
      } catch (cause) {
        if (isNfsError(cause, 'NOT_SYNC', 'STALE', 'BADHANDLE', 'NOENT')) return false;
        throw cause;
      }
    },
  };
}

const looksOf = ({ fileId, ctime, ctimeNs }: Attributes): string => `${fileId} ${ctime}.${ctimeNs}`;
