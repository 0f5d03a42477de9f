import type { Clock } from '#base/clock.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { type Attributes, maxTransferBytes } from '#wire/nfs3/structures.ts';
import { type Budget, createBudget, maxUnwrittenBytesPerMount } from './budget.ts';
import { createCalls } from './calls.ts';
import { createCreateOperations } from './create.ts';
import { createMountContext } from './create-mount-context.ts';
import type { DataLoss } from './data-loss-log.ts';
import { createDentryShrinker } from './dentry-shrinker.ts';
import { createDirectories } from './directories.ts';
import { createEntries } from './entries.ts';
import { asErrno } from './errors.ts';
import { createFiles } from './files.ts';
import { createGetattr } from './getattr.ts';
import type { IdentityOptions } from './identity.ts';
import { createLockedDirectories } from './locked-directories.ts';
import { withPermissionChecks } from './permission-checks.ts';
import type { JournaledWrites, Nodes, Proofs } from './ports.ts';
import { createCharges, noCharges } from './quota/charges.ts';
import type { Quota } from './quota/quota.ts';
import { withQuota } from './quota/with-quota.ts';
import { readOnlyOperations } from './read-only.ts';
import { createReadlink } from './readlink.ts';
import { createRename } from './rename.ts';
import type { RequestSequence } from './request-sequence.ts';
import { createSetattr } from './setattr.ts';
import { createSharedCaches, type SharedCaches } from './shared-caches.ts';
import { createStatfs } from './statfs.ts';
import { createUnlink } from './unlink.ts';
import { createWrites, type UncommittedWrites } from './writes.ts';

export interface FileSystemOptions {
  readonly identity: IdentityOptions;
  /** Minimum time that names and attributes are cached. 0: not at all. */
  readonly cacheMs?: number;
  /** `soft`: EIO after this time without an answer. Default: `hard`, waits forever. */
  readonly softMs?: number | undefined;
  readonly readOnly?: boolean;
  /** Answers writes only when they are on the server's disk. Default: earlier, if the journal outlives this process. */
  readonly sync?: boolean | undefined;
  /** Who checks permissions. Default: the kernel. */
  readonly checks?: 'kernel' | 'server' | undefined;
  /** The group shown for every object if permissions are checked here. Default: the server's. */
  readonly group?: number | undefined;
  /** Maximum size of one READ and one WRITE. */
  readonly maxRead?: number;
  readonly maxWrite?: number;
}

export interface FileSystemParts {
  readonly nfs: NfsClient;
  readonly nodes: Nodes;
  readonly proofs: Proofs;
  readonly clock: Clock;
  /** Sends a notification to the kernel. */
  readonly notify: (bytes: Buffer) => void;
  /**
   * Like `notify`, from another thread, for notifications that may block until a request is answered. Default: the
   * kernel is never asked to drop entries.
   */
  readonly notifyFromThread?: (bytes: Buffer) => Promise<unknown>;
  readonly options: FileSystemOptions;
  /** Enforces the volume's size. Default: only the export's size limits it. */
  readonly quota?: Quota | undefined;
  /** Caches shared with the other mounts of the process. Default: none. */
  readonly shared?: SharedCaches;
  /** Aborts when the mount is gone: all calls are cancelled. */
  readonly mountEnded?: AbortSignal;
  /** Default: writes are answered when they are on the server's disk. */
  readonly writeBehind?: {
    readonly journal: JournaledWrites;
    /** Shared by all mounts of the process. */
    readonly budget: Budget;
    /** Resolves when data may be sent. Undefined: now. */
    readonly ready: () => Promise<void> | undefined;
    /** Acknowledged data were lost. */
    readonly onLost?: (loss: DataLoss) => void;
  };
}

/** Dispose it when the mount is gone. */
export interface FileSystem extends Disposable {
  readonly operations: Partial<Operations>;
  readonly uncommitted: UncommittedWrites;
}

export const createFileSystem = (parts: FileSystemParts): Partial<Operations> => openFileSystem(parts).operations;

/**
 * An NFS directory as a FUSE file system. Missing operations (locks, extended attributes, fallocate, lseek) are done by
 * the kernel or refused: NFSv3 has none of them.
 */
export function openFileSystem(parts: FileSystemParts): FileSystem {
  const { nodes, clock, options, shared = createSharedCaches() } = parts;
  const { cacheMs: ttlMs = 1_000, softMs: timeoutMs = Number.POSITIVE_INFINITY } = options;
  const { maxRead = maxTransferBytes, maxWrite = maxTransferBytes } = options;
  const calls = createCalls({ clock, timeoutMs, mountEnded: parts.mountEnded });
  const context = createMountContext(parts, {
    calls,
    shared,
    ttlMs,
    timeoutMs,
    unansweredEnd: (id) => writes.unansweredEnd(id),
  });
  const { attributes, names, server, sequence, waitFor } = context;
  const ready = parts.writeBehind?.ready ?? (() => undefined);
  const entries = createEntries(context);
  const createOperations = createCreateOperations(context, entries);
  const { quota } = parts;
  const getattr = async (id: number, request: Request): Promise<Attributes> => {
    await writes.waitUntilAnswered(id, request);
    return await server.getattr(request, id);
  };
  const charges = quota === undefined ? noCharges : createCharges({ quota, attributes, getattr, waitFor });
  const unlinkOperations = createUnlink(context, entries, { charges, ready });
  const mountBudget = createBudget(maxUnwrittenBytesPerMount);
  const writesWithoutQuota = createWrites({
    context,
    calls,
    journal: parts.writeBehind?.journal,
    ready,
    isSync: options.sync === true,
    maxWrite: Math.min(maxWrite, maxTransferBytes),
    isHard: timeoutMs === Number.POSITIVE_INFINITY,
    onDone: charges.settle,
    onLost: parts.writeBehind?.onLost,
    budgets: [mountBudget, ...(parts.writeBehind === undefined ? [] : [parts.writeBehind.budget])],
  });
  const writes = withQuota(writesWithoutQuota, charges, waitFor);
  const setattrOperation = createSetattr(context, writes, charges, options.group);
  const { forget: forgetFile, ...files } = createFiles({
    context,
    entries,
    createOperations,
    unlinkOperations,
    writes,
    readBuffers: shared.readBuffers,
    maxRead: Math.min(maxRead, maxTransferBytes),
  });
  const directories = createDirectories(context, entries);
  const { mkdir, mknod, symlink, link } = createOperations;
  const { unlink, rmdir } = unlinkOperations;
  const changes = {
    mkdir,
    mknod,
    symlink,
    link,
    unlink,
    rmdir,
    ...createRename(context, entries, unlinkOperations, charges),
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
    readlink: createReadlink(context),
    statfs: createStatfs(context, quota),
  };
  const { notifyFromThread } = parts;
  const lockedDirectories = createLockedDirectories(clock);
  if (notifyFromThread !== undefined)
    nodes.onPressure(createDentryShrinker({ nodes, server, notifyFromThread, lockedDirectories, ready }));
  const boundOperations = {
    ...withErrnoErrors(
      lockedDirectories.track(options.readOnly === true ? readOnlyOperations(operations) : operations),
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
    operations: boundOperations,
    uncommitted: writes.uncommitted,
    [Symbol.dispose]: () => {
      // Unsent writes are dropped and free their memory.
      parts.writeBehind?.budget.release(mountBudget.used);
      attributes[Symbol.dispose]();
      names[Symbol.dispose]();
    },
  };
}

type AnyOperation = (...args: never[]) => unknown;

/** Converts errors to errno. */
function throwErrno(cause: unknown): never {
  throw asErrno(cause);
}

function withErrnoErrors(operations: Partial<Operations>, sequence: RequestSequence): Partial<Operations> {
  const withErrno =
    (operation: AnyOperation): AnyOperation =>
    (...args) => {
      sequence.startRequest();
      try {
        const result = operation(...args);
        return result instanceof Promise ? result.catch(throwErrno) : result;
      } catch (cause) {
        return throwErrno(cause);
      }
    };
  const all = Object.entries(operations).map(([name, does]) => [name, withErrno(does as AnyOperation)]);
  return Object.fromEntries(all) as Partial<Operations>;
}
