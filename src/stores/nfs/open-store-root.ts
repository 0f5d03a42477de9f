import { randomUUID } from 'node:crypto';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { coalesced } from '#base/coalesced.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Room, StoreName } from '#core/model.ts';
import type { ProcessMarks, StoreContext } from '#core/ports.ts';
import { type FileHandle, isNfsError, type NfsClient } from '#wire/nfs3/index.ts';
import { createPlaces } from '../file-store/call-slots.ts';
import { otherStore } from '../file-store/errors.ts';
import { isRefusal } from '../file-store/files.ts';
import { identityText, readIdentity, refuseOtherLayout, refuseOtherStore } from '../file-store/identity.ts';
import { encodeMeta } from '../file-store/meta.ts';
import type { StoreRoot } from '../file-store/store-root.ts';
import { type Connect, identityOf, type Session } from './connect.ts';
import { createExplain } from './diagnosis.ts';
import { type Blamed, nfsFailure } from './failures.ts';
import { absentFolderIsAbsent, createNfsFiles, type NfsFiles } from './files.ts';
import { createFolders, type Folders } from './folders.ts';
import { createGuardTicks } from './guard-ticks.ts';
import { createOthers } from './host-locks.ts';
import { createLockFile } from './lock-file.ts';
import { createLockIo } from './lock-io.ts';
import { createMarks } from './lock-marks.ts';
import { type NfsOptions, shownPlace } from './options.ts';
import { createNfsReserve } from './reserve.ts';
import { createScratches } from './scratch-names.ts';
import { serverTime } from './server-time.ts';
import { createSeenUses, type SeenUses } from './use-record-reader.ts';

export interface NfsPlace extends StoreRoot {
  readonly files: NfsFiles;
  readonly session: Session;
  readonly uses: SeenUses;
}

export interface OpenParts {
  readonly options: NfsOptions;
  readonly store: StoreName;
  readonly context: StoreContext;
  readonly clock: Clock;
  readonly connect: Connect;
  readonly readOnly: boolean;
  /** Which process this is: in the marks on what it makes and holds. */
  readonly marks: ProcessMarks;
  /** Locks that this process holds at the moment, in every store that it has open. */
  readonly held: Set<string>;
}

const folders = ['tmp', 'deleting', 'trash', 'retained', 'locks', 'users', 'quota'];
/** Calls to a server cost no thread; this bounds what one store keeps waiting in memory. */
const shortCalls = 128;
const longCalls = 8;
const identityPatienceMs = 5_000;
const identityPauseMs = 100;

/** For one call that a list of stores waits for. */
export const shortDeadlineMs = ({ timeout }: Pick<NfsOptions, 'timeout'>): number => Math.min(timeout, 5_000);

export const blamedOf = (options: NfsOptions, store: string): Blamed => ({
  store,
  place: shownPlace(options),
  server: options.hosts.join(', '),
  uid: identityOf(options).uid,
  privileged: options.sourcePorts !== undefined,
  tls: options.tls !== undefined,
  network: options.network,
});

export async function openNfsPlace(parts: OpenParts, scope: Scope): Promise<NfsPlace> {
  const { options, store } = parts;
  const failure = (cause: unknown, doing: string): StowageError => nfsFailure(cause, doing, blamedOf(options, store));
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
    throw failure(cause, `opening store ${store} (${shownPlace(options)})`);
  }
}

async function open(
  { options, store, context, clock, readOnly, marks: process, held }: OpenParts,
  session: Session,
  first: FileHandle,
  failure: (cause: unknown, doing: string) => StowageError,
  scope: Scope,
): Promise<NfsPlace> {
  const { nfs } = session;
  const explain = createExplain(session, clock);
  const root = shownPlace(options);
  const own = (...names: readonly string[]): string => [root, '.stowage', ...names].join('/');
  const marks = createMarks(process);
  const keeper = { handle: first, identity: undefined as string | undefined };
  const deadlineMs = options.timeout;
  const foldersAt = (rootHandle: () => FileHandle, renew: () => Promise<void>): Folders =>
    createFolders({ nfs, root, rootHandle, renew, deadlineMs });
  const filesIn = (found: Folders): NfsFiles => createNfsFiles({ nfs, folders: found, deadlineMs, mark: marks.next });
  const renew = coalesced(async () => {
    if (!(await isStale(nfs, keeper.handle, options.timeout))) return;
    const fresh = await session.mount(AbortSignal.timeout(options.timeout * 2));
    // Nothing else is done there before it is known to be the store.
    const there = filesIn(
      foldersAt(
        () => fresh,
        async () => undefined,
      ),
    );
    const uuid = (await readIdentity(there, own('store.json')))?.uuid;
    if (uuid !== keeper.identity)
      throw otherStore(root, store, `it is store ${uuid ?? 'without a name'}, and was ${keeper.identity}`);
    keeper.handle = fresh;
  });
  const handles = foldersAt(() => keeper.handle, renew);
  const files = filesIn(handles);
  const scratches = createScratches({ instance: context.instance, marks: process, clock });
  const scratch = (): string => own('tmp', scratches.next());
  const uses = createSeenUses({ files, folder: own('users'), scratch });
  const io = createLockIo({ nfs, folders: handles, deadlineMs, ownFolder: own('tmp') });
  const lockFile = createLockFile({ io, marks, clock, ticks: createGuardTicks(io) });
  const others = createOthers({
    files,
    io,
    lockFile,
    clock,
    marks,
    store,
    held,
    log: scope.log,
    usesOf: uses.listHeld,
    folder: own('locks'),
    spare: own('store.json'),
    keyOf: (path) => `${keeper.identity} ${path.slice(root.length)}`,
  });

  const room = async (signal?: AbortSignal): Promise<Room> => {
    const within = { deadlineMs: shortDeadlineMs(options), ...(signal === undefined ? {} : { signal }) };
    const { totalBytes, availableBytes } = await nfs.fsstat(keeper.handle, within);
    return { totalBytes, freeBytes: availableBytes };
  };

  const recorded = await readIdentity(files, own('store.json')).catch((cause: unknown) => {
    // Read-only: records that we may not read do not matter, directories are volumes all the same.
    if (readOnly && !(cause instanceof StowageError)) return { layout: 'directory', uuid: context.identity };
    if (cause instanceof StowageError && cause.reason === 'record-unreadable' && !readOnly) return undefined;
    throw cause;
  });
  await refuseOtherStore(files, root, store, recorded, context.identity);
  if (recorded !== undefined) refuseOtherLayout(root, recorded.layout, 'directory');
  if (!readOnly) {
    await refuseLocked(files, root, own('lock'));
    await files.makeFolder(own());
    for (const folder of folders) await files.makeFolder(own(folder));
    keeper.identity =
      recorded?.uuid ?? (await establish({ files, path: own('store.json'), scratch: scratch(), clock, scope }));
  } else keeper.identity = recorded?.uuid;

  return {
    store,
    context,
    files,
    root,
    own,
    scratch,
    session,
    uses,
    identity: keeper.identity,
    base: `nfs://${options.hosts[0]}${options.path}`,
    metaPath: (name) => `${root}/${name}.meta`,
    isLeftover: scratches.isLeftover,
    // The handle is the directory: one that was put in its place has another.
    verify: async () => undefined,
    inFlight: { short: createPlaces(shortCalls), long: createPlaces(longCalls) },
    failure: async (cause, doing) => failure(await explain(cause), doing),
    sync: async () => undefined,
    replace: async (path, meta, sure) => {
      const fresh = scratch();
      await files.writeNew(fresh, encodeMeta(meta));
      try {
        sure?.();
        if (!(await files.rename(fresh, path))) throw new Error(`${fresh} was removed by somebody else`);
      } catch (cause) {
        // Where the server did not answer, the record may be in its place already.
        if (isRefusal(cause) || cause instanceof DeadlineExceeded) await files.unlink(fresh).catch(() => false);
        throw cause;
      }
    },
    room,
    reserve: createNfsReserve({
      files,
      folder: own('reserve'),
      scratch,
      free: async () => (await room()).freeBytes,
    }),
    serverTime: () => serverTime(files, own('tmp'), scratch),
    others: readOnly ? undefined : others,
    close: async () => session.close(),
  };
}

/** What keeps hosts on an export apart does not keep out the one that has it as a directory of its own. */
async function refuseLocked(files: NfsFiles, root: string, lock: string): Promise<void> {
  if ((await absentFolderIsAbsent(files.look(lock))) === undefined) return;
  throw new StowageError(`${root} is a local store of the machine it lies on`, {
    code: 'conflict',
    reason: 'store-local-elsewhere',
    action:
      'Give the NFS store a directory of its own; or only read this one: readOnly=true. If no Stowage has it as a local store any more, remove .stowage/lock there.',
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

interface Establishing {
  readonly files: NfsFiles;
  /** Of `store.json`. */
  readonly path: string;
  readonly scratch: string;
  readonly clock: Clock;
  readonly scope: Scope;
}

/** Gives a new store its name, in one step; of several hosts that do, one wins, and all take its name. */
async function establish(parts: Establishing): Promise<string> {
  const { files, path, scratch } = parts;
  const uuid = randomUUID();
  const text = identityText(uuid, 'directory');
  await files.writeNew(scratch, text);
  try {
    // A server without links says so in its own way. What a crash leaves empty there is for people to remove.
    await files.link(scratch, path).catch((cause: unknown) => {
      if (isErrno(cause, 'EEXIST') || !isRefusal(cause)) throw cause;
      return files.writeNew(path, text);
    });
    return uuid;
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return await nameOfStore(parts);
    throw cause;
  } finally {
    await files.unlink(scratch);
  }
}

/** Where there are no links, another host may still be writing it. */
async function nameOfStore({ files, path, clock, scope }: Establishing): Promise<string> {
  for (const since = clock.elapsed(); ; ) {
    try {
      const uuid = (await readIdentity(files, path))?.uuid;
      if (uuid !== undefined) return uuid;
    } catch (cause) {
      if (!(cause instanceof StowageError) || clock.elapsed() - since > identityPatienceMs) throw cause;
    }
    if (clock.elapsed() - since > identityPatienceMs) throw nameless(path);
    await clock.sleep(identityPauseMs, scope.signal);
  }
}

function nameless(path: string): StowageError {
  return new StowageError(`${path} does not say which store this is`, {
    code: 'conflict',
    reason: 'record-unreadable',
    action: 'Restore it from a backup; or remove it: it is made anew when the store is opened.',
  });
}
