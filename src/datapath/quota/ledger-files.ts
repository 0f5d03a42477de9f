import { unlessAborted } from '#base/aborted.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { readFully } from '#wire/nfs3/file-reader.ts';
import { listDirectory } from '#wire/nfs3/listing.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type Attributes, type FileHandle, fileType, stability, type Time } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';

/** The directory shared by a volume's nodes. Each call is atomic on the server. */
export interface LedgerFiles {
  names(): Promise<readonly string[]>;
  /** Undefined: absent. */
  read(name: string): Promise<string | undefined>;
  /** Atomic and durable: a reader sees either the old or the new content. */
  write(name: string, text: string): Promise<void>;
  /** Idempotent: succeeds if the file is absent. */
  remove(name: string): Promise<void>;
  /** Creates the file. False: it already exists. */
  tryCreate(name: string, text: string): Promise<boolean>;
  /** Returns the file's fingerprint, which changes with each `renew`. Undefined: absent. */
  fingerprint(name: string): Promise<string | undefined>;
  /**
   * Changes the file's fingerprint. With `ifLooks`: only if it still matches; of several concurrent callers one
   * succeeds.
   */
  touch(name: string, ifFingerprint?: string): Promise<boolean>;
}

export interface LedgerFilesParts {
  readonly nfs: NfsClient;
  readonly folder: FileHandle;
  /** Credential and deadline: the directory belongs to the store, not to users. */
  readonly options: CallOptions;
  /** The temporary name for writes, used by no other process. */
  readonly temporaryName: string;
  /** Resolves when changes may start: calls of a predecessor may still run. */
  readonly ready?: (() => Promise<void> | undefined) | undefined;
}

const neverAborts = new AbortController().signal;

/** A record is one line; a longer file is not ours. */
const maxRecordBytes = 4096;
const maxNames = 100_000;
/** How often a file may be replaced between finding and reading it. */
const maxAttempts = 16;

export function createLedgerFiles({ nfs, folder, options, temporaryName, ready }: LedgerFilesParts): LedgerFiles {
  const waitUntilReady = async (): Promise<void> => {
    const pending = ready?.();
    if (pending !== undefined) await unlessAborted(pending, options.signal ?? neverAborts);
  };

  const find = (name: string): Promise<FoundFile | undefined> => findFile(nfs, folder, name, options);

  async function writeContent(name: string, handle: FileHandle, text: string): Promise<void> {
    const data = Buffer.from(text);
    const { count } = await nfs.write(handle, 0, data, stability.fileSync, options);
    if (count !== data.length) throw new Error(`the server wrote ${count} of ${data.length} bytes of ${name}`);
  }

  async function replace(name: string, text: string): Promise<void> {
    await waitUntilReady();
    const { handle } = await nfs.create(
      folder,
      temporaryName,
      { mode: 'unchecked', set: { mode: 0o600, size: 0 } },
      options,
    );
    await writeContent(temporaryName, handle, text);
    await nfs.rename(
      { directory: folder, name: temporaryName },
      { directory: folder, name },
      { ...options, expected: handle },
    );
  }

  async function readRecord(handle: FileHandle): Promise<string> {
    const buffer = Buffer.alloc(maxRecordBytes + 1);
    const count = await readFully(nfs, handle, 0, buffer, options);
    return count > maxRecordBytes ? '' : buffer.toString('utf8', 0, count);
  }

  return {
    names: async () => {
      const names: string[] = [];
      for await (const page of listDirectory(nfs, folder, { ...options, namesOnly: true, maxEntries: maxNames }))
        for (const { name } of page) names.push(name);
      return names;
    },
    read: async (name) => {
      for (let attempt = 1; ; attempt++) {
        const found = await find(name);
        if (found === undefined) return undefined;
        if (found.attributes.type !== fileType.regular) return '';
        try {
          return await readRecord(found.handle);
        } catch (cause) {
          if (attempt >= maxAttempts || !isNfsError(cause, 'STALE', 'BADHANDLE', 'NOENT')) throw cause;
        }
      }
    },
    write: async (name, text) => {
      for (let attempt = 1; ; attempt++) {
        try {
          return await replace(name, text);
        } catch (cause) {
          // A cleanup after a count removed it as a leftover.
          if (attempt >= maxAttempts || !isNfsError(cause, 'NOENT', 'STALE')) throw cause;
        }
      }
    },
    remove: async (name) => {
      await waitUntilReady();
      const found = await find(name);
      if (found === undefined) return;
      try {
        await nfs.remove(folder, name, { ...options, expected: found.handle });
      } catch (cause) {
        if (!isNfsError(cause, 'NOENT')) throw cause;
      }
    },
    tryCreate: async (name, text) => {
      await waitUntilReady();
      try {
        const { handle } = await nfs.create(folder, name, { mode: 'guarded', set: { mode: 0o600 } }, options);
        await writeContent(name, handle, text);
        return true;
      } catch (cause) {
        if (isNfsError(cause, 'EXIST')) return false;
        throw cause;
      }
    },
    fingerprint: async (name) => {
      const found = await find(name);
      return found && fingerprintOf(found.attributes);
    },
    touch: async (name, ifFingerprint) => {
      await waitUntilReady();
      const found = await find(name);
      if (found === undefined || (ifFingerprint !== undefined && fingerprintOf(found.attributes) !== ifFingerprint))
        return false;
      try {
        const guard = ifFingerprint === undefined ? {} : { ifChangedAt: changeTimeOf(found.attributes) };
        await nfs.setattr(found.handle, { mtime: 'now' }, { ...options, ...guard });
        return true;
      } catch (cause) {
        if (isNfsError(cause, 'NOT_SYNC', 'STALE', 'BADHANDLE', 'NOENT')) return false;
        throw cause;
      }
    },
  };
}

interface FoundFile {
  readonly handle: FileHandle;
  readonly attributes: Attributes;
}

async function findFile(
  nfs: NfsClient,
  folder: FileHandle,
  name: string,
  options: CallOptions,
): Promise<FoundFile | undefined> {
  try {
    const { handle, attributes } = await nfs.lookup(folder, name, options);
    return { handle, attributes: attributes ?? (await nfs.getattr(handle, options)) };
  } catch (cause) {
    if (isNfsError(cause, 'NOENT', 'STALE')) return undefined;
    throw cause;
  }
}

const changeTimeOf = ({ ctime: seconds, ctimeNs: nanoseconds }: Attributes): Time => ({ seconds, nanoseconds });

const fingerprintOf = ({ fileId, ctime, ctimeNs }: Attributes): string => `${fileId} ${ctime}.${ctimeNs}`;
