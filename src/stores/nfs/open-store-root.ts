import { randomUUID } from 'node:crypto';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { coalesce } from '#base/coalesce.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Room, StoreName } from '#core/model.ts';
import type { ProcessMarks, StoreContext } from '#core/ports.ts';
import { type FileHandle, isNfsError, type NfsClient } from '#wire/nfs3/index.ts';
import { createSlots } from '../file-store/call-slots.ts';
import { differentStore } from '../file-store/errors.ts';
import { isDefiniteFailure } from '../file-store/files.ts';
import { identityText, readIdentity, refuseOtherLayout, refuseOtherStore } from '../file-store/identity.ts';
import { encodeMeta } from '../file-store/meta.ts';
import type { StoreRoot } from '../file-store/store-root.ts';
import { type Connect, identityOf, type Session } from './connect.ts';
import { createHangUpExplainer } from './diagnosis.ts';
import { type ErrorContext, nfsFailure } from './failures.ts';
import { createNfsFiles, type NfsFiles, undefinedIfFolderAbsent } from './files.ts';
import { createFolders, type Folders } from './folders.ts';
import { createGuardTicks } from './guard-ticks.ts';
import { createHostLocks } from './host-locks.ts';
import { createLockFile } from './lock-file.ts';
import { createLockIo } from './lock-io.ts';
import { createMarks } from './lock-marks.ts';
import { displayLocation, type NfsOptions } from './options.ts';
import { createNfsReserve } from './reserve.ts';
import { createScratchNames } from './scratch-names.ts';
import { serverTime } from './server-time.ts';
import { createUseRecordReader, type UseRecordReader } from './use-record-reader.ts';

export interface NfsStoreRoot extends StoreRoot {
  readonly files: NfsFiles;
  readonly session: Session;
  readonly uses: UseRecordReader;
}

export interface OpenNfsStoreRoot {
  readonly options: NfsOptions;
  readonly store: StoreName;
  readonly context: StoreContext;
  readonly clock: Clock;
  readonly connect: Connect;
  readonly readOnly: boolean;
  /** The marks that this process sets on the files that it creates and the locks that it holds. */
  readonly marks: ProcessMarks;
  /** The locks that this process holds, in all stores that it has open. */
  readonly held: Set<string>;
}

const folders = ['tmp', 'deleting', 'trash', 'retained', 'locks', 'users', 'quota'];
/** Calls to a server need no thread. This limits the memory for pending calls of one store. */
const maxShortCalls = 128;
const maxLongCalls = 8;
const identityTimeoutMs = 5_000;
const identityRetryMs = 100;

/** The deadline of one call that a listing of stores waits for. */
export const shortDeadlineMs = ({ timeout }: Pick<NfsOptions, 'timeout'>): number => Math.min(timeout, 5_000);

export const errorContextOf = (options: NfsOptions, store: string): ErrorContext => ({
  store,
  location: displayLocation(options),
  server: options.hosts.join(', '),
  uid: identityOf(options).uid,
  privileged: options.sourcePorts !== undefined,
  tls: options.tls !== undefined,
  network: options.network,
});

export async function openNfsStoreRoot(parts: OpenNfsStoreRoot, scope: Scope): Promise<NfsStoreRoot> {
  const { options, store } = parts;
  const failure = (cause: unknown, doing: string): StowageError =>
    nfsFailure(cause, doing, errorContextOf(options, store));
  try {
    const session = await parts.connect(options, () => undefined, scope.signal);
    try {
      return await open(parts, session, await session.mount(scope.signal), failure, scope);
    } catch (cause) {
      session.close();
      throw cause;
    }
  } catch (cause) {
    if (scope.signal.aborted && !(cause instanceof StowageError)) throw scope.signal.reason;
    throw failure(cause, `opening store ${store} (${displayLocation(options)})`);
  }
}

async function open(
  { options, store, context, clock, readOnly, marks: processMarks, held }: OpenNfsStoreRoot,
  session: Session,
  firstHandle: FileHandle,
  failure: (cause: unknown, doing: string) => StowageError,
  scope: Scope,
): Promise<NfsStoreRoot> {
  const { nfs } = session;
  const explain = createHangUpExplainer(session, clock);
  const root = displayLocation(options);
  const ownPath = (...names: readonly string[]): string => [root, '.stowage', ...names].join('/');
  const marks = createMarks(processMarks);
  const current = { handle: firstHandle, identity: undefined as string | undefined };
  const deadlineMs = options.timeout;
  const foldersAt = (rootHandle: () => FileHandle, remount: () => Promise<void>): Folders =>
    createFolders({ nfs, root, rootHandle, remount, deadlineMs });
  const filesIn = (found: Folders): NfsFiles =>
    createNfsFiles({ nfs, folders: found, deadlineMs, nextMark: marks.next });
  const remount = coalesce(async () => {
    if (!(await isStale(nfs, current.handle, options.timeout))) return;
    const freshHandle = await session.mount(AbortSignal.timeout(options.timeout * 2));
    // Check that it is the same store before doing anything else there.
    const freshFiles = filesIn(foldersAt(() => freshHandle, doNotRemount));
    const uuid = (await readIdentity(freshFiles, ownPath('store.json')))?.uuid;
    if (uuid !== current.identity)
      throw differentStore(root, store, `it is store ${uuid ?? 'without an id'}; expected ${current.identity}`);
    current.handle = freshHandle;
  });
  const rootFolders = foldersAt(() => current.handle, remount);
  const files = filesIn(rootFolders);
  const scratchNames = createScratchNames({ instance: context.instance, marks: processMarks, clock });
  const scratchPath = (): string => ownPath('tmp', scratchNames.next());
  const uses = createUseRecordReader({ files, folder: ownPath('users'), scratchPath });
  const io = createLockIo({ nfs, folders: rootFolders, deadlineMs, ownFolder: ownPath('tmp') });
  const lockFile = createLockFile({ io, marks, clock, ticks: createGuardTicks(io) });
  const hostLocks = createHostLocks({
    files,
    io,
    lockFile,
    clock,
    marks,
    store,
    held,
    log: scope.log,
    usesOf: uses.listHeld,
    folder: ownPath('locks'),
    spareLock: ownPath('store.json'),
    keyOf: (path) => `${current.identity} ${path.slice(root.length)}`,
  });

  const room = async (signal?: AbortSignal): Promise<Room> => {
    const limits = { deadlineMs: shortDeadlineMs(options), ...(signal === undefined ? {} : { signal }) };
    const { totalBytes, availableBytes } = await nfs.fsstat(current.handle, limits);
    return { totalBytes, freeBytes: availableBytes };
  };

  current.identity = await establishIdentity(
    { files, root, ownPath, scratchPath, readOnly, store, context, clock },
    scope,
  );

  return {
    store,
    context,
    files,
    root,
    ownPath,
    scratchPath,
    session,
    uses,
    identity: current.identity,
    baseUri: `nfs://${options.hosts[0]}${options.path}`,
    metaPath: (name) => `${root}/${name}.meta`,
    isLeftover: scratchNames.isLeftover,
    // The handle identifies the directory: a new one in its place has another handle.
    verify: async () => undefined,
    callSlots: { short: createSlots(maxShortCalls), long: createSlots(maxLongCalls) },
    failure: async (cause, doing) => failure(await explain(cause), doing),
    sync: async () => undefined,
    replaceRecord: createReplaceRecord(files, scratchPath),
    room,
    reserve: createNfsReserve({
      files,
      folder: ownPath('reserve'),
      scratchPath,
      freeBytes: async () => (await room()).freeBytes,
    }),
    serverTime: () => serverTime(files, ownPath('tmp'), scratchPath),
    hostLocks: readOnly ? undefined : hostLocks,
    close: async () => session.close(),
  };
}

const doNotRemount = async (): Promise<void> => undefined;

const createReplaceRecord =
  (files: NfsFiles, scratchPath: () => string): StoreRoot['replaceRecord'] =>
  async (path, meta, check) => {
    const fresh = scratchPath();
    await files.writeNew(fresh, encodeMeta(meta));
    try {
      check?.();
      if (!(await files.rename(fresh, path))) throw new Error(`${fresh} was removed by another program`);
    } catch (cause) {
      // If the server did not answer, the rename may have happened.
      if (isDefiniteFailure(cause) || cause instanceof DeadlineExceeded) await files.unlink(fresh).catch(() => false);
      throw cause;
    }
  };

type EstablishIdentity = Pick<NfsStoreRoot, 'files' | 'root' | 'ownPath' | 'scratchPath'> &
  Pick<OpenNfsStoreRoot, 'readOnly' | 'store' | 'context' | 'clock'>;

/** Checks whose store it is, and creates what a new store needs. Undefined: a read-only store that has no id. */
async function establishIdentity(opening: EstablishIdentity, scope: Scope): Promise<string | undefined> {
  const { files, root, ownPath, scratchPath, readOnly, store, context, clock } = opening;
  const path = ownPath('store.json');
  const recorded = await readIdentity(files, path).catch((cause: unknown) => {
    // A read-only store needs no records: all directories are volumes. So ignore records that we may not read.
    if (readOnly && !(cause instanceof StowageError)) return { layout: 'directory', uuid: context.identity };
    if (cause instanceof StowageError && cause.reason === 'record-unreadable' && !readOnly) return undefined;
    throw cause;
  });
  await refuseOtherStore(files, root, store, recorded, context.identity);
  if (recorded !== undefined) refuseOtherLayout(root, recorded.layout, 'directory');
  if (readOnly) return recorded?.uuid;
  await refuseLocked(files, root, ownPath('lock'));
  await files.makeFolder(ownPath());
  for (const folder of folders) await files.makeFolder(ownPath(folder));
  return recorded?.uuid ?? (await createIdentity({ files, path, scratchPath: scratchPath(), clock, scope }));
}

/** The locks between hosts on an export do not exclude a host that uses the directory as a local store. */
async function refuseLocked(files: NfsFiles, root: string, lock: string): Promise<void> {
  if ((await undefinedIfFolderAbsent(files.lstat(lock))) === undefined) return;
  throw new StowageError(`${root} is in use as a local store on the NFS server`, {
    code: 'conflict',
    reason: 'store-local-elsewhere',
    action:
      'Use another directory for the NFS store; or open this one read-only: readOnly=true. Once no Stowage uses it as a local store, remove .stowage/lock there.',
  });
}

async function isStale(nfs: NfsClient, handle: FileHandle, deadlineMs: number): Promise<boolean> {
  try {
    await nfs.getattr(handle, { deadlineMs });
    return false;
  } catch (cause) {
    if (isNfsError(cause, 'STALE', 'BADHANDLE')) return true;
    throw cause;
  }
}

interface CreateIdentity {
  readonly files: NfsFiles;
  /** The path of `store.json`. */
  readonly path: string;
  readonly scratchPath: string;
  readonly clock: Clock;
  readonly scope: Scope;
}

/** Gives a new store its id, in one step. If several hosts try at the same time, one wins, and all use its id. */
async function createIdentity(parts: CreateIdentity): Promise<string> {
  const { files, path, scratchPath } = parts;
  const uuid = randomUUID();
  const text = identityText(uuid, 'directory');
  await files.writeNew(scratchPath, text);
  try {
    // Servers without hard links report different errors. If a crash leaves the file empty there, a person must remove it.
    await files.link(scratchPath, path).catch((cause: unknown) => {
      if (isErrno(cause, 'EEXIST') || !isDefiniteFailure(cause)) throw cause;
      return files.writeNew(path, text);
    });
    return uuid;
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return await awaitIdentity(parts);
    throw cause;
  } finally {
    await files.unlink(scratchPath);
  }
}

/** Waits, because without hard links another host may still be writing the file. */
async function awaitIdentity({ files, path, clock, scope }: CreateIdentity): Promise<string> {
  for (const since = clock.elapsed(); ; ) {
    try {
      const uuid = (await readIdentity(files, path))?.uuid;
      if (uuid !== undefined) return uuid;
    } catch (cause) {
      if (!(cause instanceof StowageError) || clock.elapsed() - since > identityTimeoutMs) throw cause;
    }
    if (clock.elapsed() - since > identityTimeoutMs) throw identityUnreadable(path);
    await clock.sleep(identityRetryMs, scope.signal);
  }
}

function identityUnreadable(path: string): StowageError {
  return new StowageError(`${path} does not contain the id of the store`, {
    code: 'conflict',
    reason: 'record-unreadable',
    action: 'Restore it from a backup; or remove it: Stowage creates a new one when it opens the store.',
  });
}
