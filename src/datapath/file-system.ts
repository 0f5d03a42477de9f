import { constants } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { maxTransfer } from '#wire/nfs3/structures.ts';
import { createAttributeCache } from './attributes.ts';
import { type Budget, createBudget, mostBehindOfMount } from './budget.ts';
import { createCalls } from './calls.ts';
import type { Context, Turns } from './context.ts';
import { createDirectories } from './directories.ts';
import { createEntries } from './entries.ts';
import { asErrno } from './errors.ts';
import { createFiles } from './files.ts';
import { createIdentities, type IdentityOptions } from './identity.ts';
import { createLettingGo } from './letting-go.ts';
import { createMaking } from './making.ts';
import { createMarks } from './marks.ts';
import { createNameCache } from './name-cache.ts';
import type { Kept, Nodes, Proofs } from './ports.ts';
import { createReadMemory } from './read-memory.ts';
import { createRemoving } from './removing.ts';
import { createRenaming } from './renaming.ts';
import { createServer } from './server.ts';
import { createSetting } from './setting.ts';
import { type Behind, createWrites } from './writes.ts';

export interface FileSystemOptions {
  readonly identity: IdentityOptions;
  /** How long names and attributes are relied on. 0: not at all. */
  readonly cacheMs?: number;
  /** `soft`: EIO when the server has not answered for so long. Left out: `hard`, it is waited for without end. */
  readonly softMs?: number | undefined;
  readonly readOnly?: boolean;
  /** Most bytes of one READ and one WRITE. */
  readonly maxRead?: number;
  readonly maxWrite?: number;
}

export interface FileSystemParts {
  readonly nfs: NfsClient;
  readonly nodes: Nodes;
  readonly proofs: Proofs;
  readonly clock: Clock;
  /** Tells the kernel something unasked. */
  readonly notify: (bytes: Buffer) => void;
  /** The same by another thread, for what may wait for an answer of ours. Left out: the kernel keeps what it wants. */
  readonly notifyApart?: (bytes: Buffer) => Promise<unknown>;
  readonly options: FileSystemOptions;
  /** Left out: writes are answered when they are on the server's disk. */
  readonly behind?: {
    readonly kept: Kept;
    /** Of all mounts of the process. */
    readonly budget: Budget;
    /** Something to be waited for before anything is sent. */
    readonly ready: () => Promise<void> | undefined;
  };
}

export interface FileSystem {
  readonly operations: Partial<Operations>;
  readonly behind: Behind;
}

export const createFileSystem = (parts: FileSystemParts): Partial<Operations> => openFileSystem(parts).operations;

/**
 * A directory of an NFS server as a FUSE file system. What is not here (locks, extended attributes, fallocate, lseek) the
 * kernel does by itself or refuses: none of it can be had from NFS version 3.
 */
export function openFileSystem(parts: FileSystemParts): FileSystem {
  const { nfs, nodes, proofs, clock, notify, options } = parts;
  const { cacheMs: ttlMs = 1_000, softMs: patienceMs = Number.POSITIVE_INFINITY } = options;
  const { maxRead = maxTransfer, maxWrite = maxTransfer } = options;
  const attributes = createAttributeCache({
    ...{ clock, ttlMs, isHidden: (id) => nodes.hidden(id) !== undefined, end: (id) => writes.end(id) },
  });
  const names = createNameCache(attributes.epoch, clock);
  const calls = createCalls({ clock, patienceMs });
  const server = createServer({
    ...{ nfs, nodes, attributes, names, calls },
    identities: createIdentities(options.identity),
  });
  const turns = { now: 0, looked: 0, lookedAt: 0 };
  const context: Context = {
    ...{ nfs, nodes, proofs, clock, server, attributes, names, marks: createMarks(clock), turns, ttlMs, notify },
  };
  const entries = createEntries(context);
  const making = createMaking(context, entries);
  const removing = createRemoving(context, entries);
  const writes = createWrites({
    ...{ context, calls, kept: parts.behind?.kept, ready: parts.behind?.ready ?? (() => undefined) },
    ...{ maxWrite: Math.min(maxWrite, maxTransfer), isHard: patienceMs === Number.POSITIVE_INFINITY },
    budgets: [createBudget(mostBehindOfMount), ...(parts.behind === undefined ? [] : [parts.behind.budget])],
  });
  const setting = createSetting(context, writes);
  const { forget: forgetFile, ...files } = createFiles({
    ...{ context, entries, making, removing, writes },
    ...{ memory: createReadMemory(), maxRead: Math.min(maxRead, maxTransfer) },
  });
  const { mkdir, mknod, symlink, link } = making;
  const { unlink, rmdir } = removing;
  const changes = { mkdir, mknod, symlink, link, unlink, rmdir, ...createRenaming(context, entries, removing) };
  const operations: Partial<Operations> = {
    ...changes,
    ...files,
    ...createDirectories(context, entries),
    lookup: entries.lookup,
    setattr: setting.setattr,
    getattr: async (id, _fh, request) => {
      await writes.settled(id, request);
      if (attributes.freshMs(id) <= 0) await server.look(request, id);
      return attributes.tell(id);
    },
    readlink: async (id, request) => {
      const target = await server.on(request, id, (handle, how) => nfs.readlink(handle, how));
      return typeof target === 'string' ? Buffer.from(target) : target;
    },
    statfs: async (id, request) => {
      const found = await server.on(request, id, (handle, how) => nfs.fsstat(handle, how));
      const blocks = (bytes: bigint): number => Number(bytes / BigInt(statfsBlock));
      return {
        ...{ blocks: blocks(found.totalBytes), bfree: blocks(found.freeBytes), bavail: blocks(found.availableBytes) },
        ...{ files: Number(found.totalFiles), ffree: Number(found.freeFiles) },
        ...{ bsize: statfsBlock, frsize: statfsBlock, namelen: 255 },
      };
    },
  };
  const { notifyApart } = parts;
  if (notifyApart !== undefined) nodes.onMany(createLettingGo({ nodes, server, notifyApart }));
  const bound = {
    ...bordered(options.readOnly === true ? withoutChanges(operations) : operations, turns),
    forget: (id: number, lookups: number): void => {
      entries.forget(id, lookups);
      if (nodes.get(id) === undefined) forgetFile(id);
    },
  };
  return { operations: bound, behind: writes.behind };
}

const statfsBlock = 4096;
const writing = constants.O_WRONLY | constants.O_RDWR | constants.O_TRUNC;

type Does = (...args: never[]) => unknown;

/** What went wrong is told in the kernel's words. */
function bordered(operations: Partial<Operations>, turns: Turns): Partial<Operations> {
  const fail = (cause: unknown): never => {
    throw asErrno(cause);
  };
  const border =
    (does: Does): Does =>
    (...args) => {
      turns.now++;
      try {
        const result = does(...args);
        return result instanceof Promise ? result.catch(fail) : result;
      } catch (cause) {
        return fail(cause);
      }
    };
  const all = Object.entries(operations).map(([name, does]) => [name, border(does as Does)]);
  return Object.fromEntries(all) as Partial<Operations>;
}

const changing = [
  'mkdir',
  'mknod',
  'symlink',
  'link',
  'unlink',
  'rmdir',
  'rename',
  'setattr',
  'create',
  'write',
] as const;

function withoutChanges(operations: Partial<Operations>): Partial<Operations> {
  const refuse = (): never => {
    throw new Errno('EROFS');
  };
  const { open } = operations;
  return {
    ...operations,
    ...Object.fromEntries(changing.map((name) => [name, refuse])),
    open: (id, flags, request) => ((flags & writing) === 0 ? open?.(id, flags, request) : undefined) ?? refuse(),
  };
}
