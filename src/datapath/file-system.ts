import { constants } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request, Statfs } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { type Attributes, maxTransfer } from '#wire/nfs3/structures.ts';
import { createAttributeCache } from './attribute-cache.ts';
import { type Budget, createBudget, mostBehindOfMount } from './budget.ts';
import { createCalls } from './calls.ts';
import type { Context } from './context.ts';
import { createCreateOperations } from './create.ts';
import { createCreationMarks } from './creation-marks.ts';
import type { DataLoss } from './data-loss-log.ts';
import { createDentryShrinker } from './dentry-shrinker.ts';
import { createDirectories } from './directories.ts';
import { createEntries } from './entries.ts';
import { asErrno } from './errors.ts';
import { createFiles } from './files.ts';
import { createGetattr } from './getattr.ts';
import { access, createIdentities, type IdentityOptions } from './identity.ts';
import { createLockedDirectories } from './locked-directories.ts';
import { createNameCache } from './name-cache.ts';
import { createPendingReleases } from './pending-releases.ts';
import { withPermissionChecks } from './permission-checks.ts';
import type { JournaledWrites, Nodes, Proofs } from './ports.ts';
import { type Charges, createCharges, noCharges } from './quota/charges.ts';
import type { Quota } from './quota/quota.ts';
import { createRename } from './rename.ts';
import { createRequestSequence, type RequestSequence } from './request-sequence.ts';
import { createRequestWait, type RequestWait } from './request-wait.ts';
import { createServer } from './server.ts';
import { createSetattr } from './setattr.ts';
import { createSharedCaches, type Shared } from './shared-caches.ts';
import { unlessAborted } from './unless-aborted.ts';
import { createUnlink } from './unlink.ts';
import { createWrites, type UncommittedWrites, type Writes } from './writes.ts';

export interface FileSystemOptions {
  readonly identity: IdentityOptions;
  /** How long names and attributes are relied on. 0: not at all. */
  readonly cacheMs?: number;
  /** `soft`: EIO when the server has not answered for so long. Left out: `hard`, it is waited for without end. */
  readonly softMs?: number | undefined;
  readonly readOnly?: boolean;
  /** Writes are answered when they are on the server's disk. Left out: before that, where something outlives this process. */
  readonly sync?: boolean | undefined;
  /** Who checks what a caller may do. Left out: the kernel. */
  readonly checks?: 'kernel' | 'server' | undefined;
  /** The group that everything is shown to belong to, where this server checks. Left out: what the NFS server says. */
  readonly group?: number | undefined;
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
  /** Holds it to the volume's size. Left out: the export's is all there is. */
  readonly quota?: Quota | undefined;
  /** With the other mounts of the process. Left out: there are none. */
  readonly shared?: Shared;
  /** The mount is over: nothing more is asked of the server, and what was is given up. */
  readonly ended?: AbortSignal;
  /** Left out: writes are answered when they are on the server's disk. */
  readonly behind?: {
    readonly kept: JournaledWrites;
    /** Of all mounts of the process. */
    readonly budget: Budget;
    /** Something to be waited for before anything is sent. */
    readonly ready: () => Promise<void> | undefined;
    /** What was answered did not get to the server's disk, and will not. */
    readonly onLost?: (loss: DataLoss) => void;
  };
}

/** Disposed of when the mount is gone. */
export interface FileSystem extends Disposable {
  readonly operations: Partial<Operations>;
  readonly behind: UncommittedWrites;
}

export const createFileSystem = (parts: FileSystemParts): Partial<Operations> => openFileSystem(parts).operations;

/**
 * A directory of an NFS server as a FUSE file system. What is not here (locks, extended attributes, fallocate, lseek) the
 * kernel does by itself or refuses: none of it can be had from NFS version 3.
 */
export function openFileSystem(parts: FileSystemParts): FileSystem {
  const { nfs, nodes, proofs, clock, notify, options, shared = createSharedCaches() } = parts;
  const { cacheMs: ttlMs = 1_000, softMs: timeoutMs = Number.POSITIVE_INFINITY } = options;
  const { maxRead = maxTransfer, maxWrite = maxTransfer } = options;
  const attributes = createAttributeCache({
    ...{ clock, ttlMs, isHidden: (id) => nodes.hidden(id) !== undefined, end: (id) => writes.end(id) },
    ...{ limit: shared.attributes, group: options.group },
  });
  const names = createNameCache({ epochOf: attributes.epoch, clock, limit: shared.names });
  const calls = createCalls({ clock, timeoutMs, ended: parts.ended });
  const server = createServer({
    ...{ nfs, nodes, attributes, names, calls, notify },
    identities: createIdentities(options.identity),
  });
  const sequence = createRequestSequence(attributes);
  const waitFor = createRequestWait({ clock, calls, timeoutMs });
  const ready = parts.behind?.ready ?? (() => undefined);
  const context: Context = {
    ...{
      nfs,
      nodes,
      proofs,
      clock,
      server,
      attributes,
      names,
      marks: createCreationMarks(clock),
      sequence,
      ttlMs,
      notify,
    },
    ...{ waitFor, releases: createPendingReleases(nodes, waitFor) },
  };
  const entries = createEntries(context);
  const creating = createCreateOperations(context, entries);
  const { quota } = parts;
  const look = async (id: number, request: Request): Promise<Attributes> => {
    await writes.settled(id, request);
    return await server.look(request, id);
  };
  const charges = quota === undefined ? noCharges : createCharges({ quota, attributes, look, waitFor });
  const unlinking = createUnlink(context, entries, { charges, ready });
  const own = createBudget(mostBehindOfMount);
  const uncharged = createWrites({
    ...{ context, calls, kept: parts.behind?.kept, ready, isSync: options.sync === true },
    ...{ maxWrite: Math.min(maxWrite, maxTransfer), isHard: timeoutMs === Number.POSITIVE_INFINITY },
    ...{ onDone: charges.written, onLost: parts.behind?.onLost },
    budgets: [own, ...(parts.behind === undefined ? [] : [parts.behind.budget])],
  });
  const writes = withQuota(uncharged, charges, waitFor);
  const setattrOperation = createSetattr(context, writes, charges, options.group);
  const { forget: forgetFile, ...files } = createFiles({
    ...{ context, entries, creating, unlinking, writes },
    ...{ memory: shared.reads, maxRead: Math.min(maxRead, maxTransfer) },
  });
  const directories = createDirectories(context, entries);
  const { mkdir, mknod, symlink, link } = creating;
  const { unlink, rmdir } = unlinking;
  const changes = {
    mkdir,
    mknod,
    symlink,
    link,
    unlink,
    rmdir,
    ...createRename(context, entries, unlinking, charges),
  };
  const operations: Partial<Operations> = {
    ...changes,
    ...files,
    ...directories,
    ...createGetattr(context, writes),
    lookup: entries.lookup,
    setattr: setattrOperation.setattr,
    ...(options.checks === 'server'
      ? withPermissionChecks(context, options.identity, { ...files, ...directories, ...setattrOperation })
      : {}),
    readlink: async (id, request) => {
      const target = await server.on(request, id, (handle, how) => nfs.readlink(handle, how), access.list);
      const bytes = typeof target === 'string' ? Buffer.from(target) : target;
      if (bytes.length > longestTarget) throw new Errno('ENAMETOOLONG');
      return bytes;
    },
    statfs: async (id, request) => {
      if (quota !== undefined) return quotaStatfs(quota.statfs());
      const found = await server.on(request, id, (handle, how) => nfs.fsstat(handle, how), access.none);
      const blocks = (bytes: bigint): number => Number(bytes / BigInt(statfsBlock));
      return {
        ...{ blocks: blocks(found.totalBytes), bfree: blocks(found.freeBytes), bavail: blocks(found.availableBytes) },
        ...{ files: Number(found.totalFiles), ffree: Number(found.freeFiles) },
        ...{ bsize: statfsBlock, frsize: statfsBlock, namelen: 255 },
      };
    },
  };
  const { notifyApart } = parts;
  const lockedDirectories = createLockedDirectories(clock);
  if (notifyApart !== undefined)
    nodes.onPressure(createDentryShrinker({ nodes, server, notifyApart, lockedDirectories, ready }));
  const bound = {
    ...withErrnoErrors(
      lockedDirectories.tracked(options.readOnly === true ? readOnlyOperations(operations) : operations),
      sequence,
    ),
    forget: (id: number, lookups: number): void => {
      entries.forget(id, lookups);
      if (nodes.get(id) !== undefined) return;
      forgetFile(id);
      charges.forget(id);
    },
  };
  return {
    ...{ operations: bound, behind: writes.behind },
    [Symbol.dispose]: () => {
      // What is left of it is not sent any more, and has no memory.
      parts.behind?.budget.give(own.used);
      attributes[Symbol.dispose]();
      names[Symbol.dispose]();
    },
  };
}

/** The kernel takes no longer target of a link. */
const longestTarget = 4095;
const statfsBlock = 4096;

/** The volume's own, not the export's. Files are not counted. */
function quotaStatfs({ bytes, used }: { readonly bytes: number; readonly used: number }): Statfs {
  const [blocks, taken] = [Math.floor(bytes / statfsBlock), Math.ceil(used / statfsBlock)];
  const bfree = Math.max(0, blocks - taken);
  return {
    ...{ blocks, bfree, bavail: bfree, files: 0, ffree: 0 },
    bsize: statfsBlock,
    frsize: statfsBlock,
    namelen: 255,
  };
}

/** Nothing is accepted that there is no room for. */
function withQuota(writes: Writes, charges: Charges, waitFor: RequestWait): Writes {
  return {
    ...writes,
    get revalidations() {
      return writes.revalidations;
    },
    write: (id, at, data, request) => {
      const room = charges.write(id, at.offset, data.length, request);
      if (room === undefined) return writes.write(id, at, data, request);
      return waitFor(request, (signal) => unlessAborted(room, signal).catch(fail))
        .then(() => writes.write(id, at, data, request))
        .catch((cause: unknown) => {
          charges.givenUp(request);
          throw cause;
        });
    },
    behind: {
      ...writes.behind,
      get files() {
        return writes.behind.files;
      },
      restore: (written) => {
        charges.restored(written.place, written.data.length);
        writes.behind.restore(written);
      },
    },
  };
}
const writing = constants.O_WRONLY | constants.O_RDWR | constants.O_TRUNC;

type AnyOperation = (...args: never[]) => unknown;

/** What went wrong is told in the kernel's words. */
function fail(cause: unknown): never {
  throw asErrno(cause);
}

function withErrnoErrors(operations: Partial<Operations>, sequence: RequestSequence): Partial<Operations> {
  const border =
    (does: AnyOperation): AnyOperation =>
    (...args) => {
      sequence.begin();
      try {
        const result = does(...args);
        return result instanceof Promise ? result.catch(fail) : result;
      } catch (cause) {
        return fail(cause);
      }
    };
  const all = Object.entries(operations).map(([name, does]) => [name, border(does as AnyOperation)]);
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

function readOnlyOperations(operations: Partial<Operations>): Partial<Operations> {
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
