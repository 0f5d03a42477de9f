import { randomBytes } from 'node:crypto';
import { unlessAborted } from '#base/aborted.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import type { DirOpArgs, Wcc } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { asErrno, isNotExecuted } from './errors.ts';
import type { ResolvedName } from './find-name.ts';
import { createHiddenNameCalls, type EntryName, withIdentity } from './hidden-name-calls.ts';
import type { Caller } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import type { HiddenName } from './ports.ts';
import type { Charges } from './quota/charges.ts';

/** NFS has no open files without a name: an open file gets a hidden name (silly rename) before it loses its own. */
export interface SillyRename {
  /**
   * Removes a name from an object. An open file gets a hidden name first, and keeps or regains its own if `perform`
   * is refused. Other changes to its names wait meanwhile.
   */
  removeName(removal: NameRemoval, request: Request): Promise<void>;
  /** Runs an open. The file counts as open until that fails. */
  runOpen<R>(id: number, request: Request, open: () => Promise<R>): Promise<R>;
  /** Removes the hidden name after the last close. Undefined: it has none. */
  removeAfterLastClose(id: number, request: Request): Promise<void> | undefined;
  /** The kernel has forgotten the node. */
  forget(id: number): void;
}

export interface NameRemoval {
  /**
   * Must not lie in the request's memory, nor anything that `perform` uses (see `copyEntryName`): the request may be
   * answered before this ends.
   */
  readonly entryName: EntryName;
  readonly resolved: ResolvedName;
  /** Another object takes over the name. Until then the name must refer to this object, even after a crash. */
  readonly isReplaced: boolean;
  /** `isHidden`: the object has a hidden name; if nothing replaces it, it has already lost this one. */
  readonly perform: (isHidden: boolean, request: Request) => Promise<void>;
}

export const copyEntryName = ({ parent, name }: EntryName): EntryName => ({ parent, name: Buffer.from(name) });

export type RemoveCall = (place: DirOpArgs, options: CallOptions) => Promise<Wcc>;

export interface SillyRenameParts {
  readonly charges: Pick<Charges, 'spaceToFree' | 'recordRemoval'>;
  /** Resolves when hidden names may be removed: RELEASE itself cannot be delayed until then. */
  readonly ready: () => Promise<void> | undefined;
  readonly remove: (at: EntryName, request: Request, call: RemoveCall) => Promise<void>;
  /** Records that the name is absent. */
  readonly recordAbsent: (at: EntryName) => void;
}

/** The form that other NFS clients use: backup programs skip them. */
const newHiddenName = (): string => `.nfs${randomBytes(12).toString('hex')}`;

const neverAborts = new AbortController().signal;

export function createSillyRename(
  context: MountContext,
  { charges, ready, remove, recordAbsent }: SillyRenameParts,
): SillyRename {
  const { nfs, nodes, server, attributes, waitFor } = context;
  const hiddenNameCalls = createHiddenNameCalls(context, recordAbsent);
  /** The user who hid each file: the last close may come from another user, or from none. */
  const hiddenBy = new Map<number, Caller>();
  /** OPENs in progress, by file. The journal counts them when they have succeeded. */
  const openings = new Map<number, number>();
  /** Files that are not open and may be losing their last name. */
  const removing = new Set<number>();
  /** By file. The server may reorder calls: a hidden name removed before it is created would stay forever. */
  const lock = createKeyedLock();
  const lockFile = (id: number, request: Request): Promise<Disposable> =>
    waitFor(request, (signal) => lock.hold([String(id)], signal));

  const isOpen = (id: number): boolean => openings.has(id) || (nodes.get(id)?.opens ?? 0) > 0;

  /**
   * Continues after the requester was interrupted: the server may run an abandoned call at any later time, and until it
   * answers, the name's state is unknown.
   */
  function runToCompletion(request: Request, work: (request: Request) => Promise<void>): Promise<void> {
    const { uid, gid, pid, resent } = request;
    const end = work({ uid, gid, pid, resent, slot: -1, signal: neverAborts }).catch((cause: unknown) => {
      throw asErrno(cause);
    });
    return waitFor(request, (signal) => unlessAborted(end, signal));
  }

  async function whileRemoving(id: number, work: () => Promise<void>): Promise<void> {
    removing.add(id);
    try {
      await work();
    } finally {
      removing.delete(id);
      // The next open must ask the server.
      attributes.expire(id);
    }
  }

  /** The file no longer has a hidden name. The link count shown did not include it. */
  function clearHidden(id: number): void {
    nodes.setHiddenName(id, undefined);
    attributes.setHidden(id, false);
    attributes.expire(id);
    hiddenBy.delete(id);
  }

  async function removeHidden(id: number, hidden: HiddenName, request: Request): Promise<void> {
    const parent = nodes.find(hidden.directory)?.id;
    const before = await charges.spaceToFree(id, request);
    const call: RemoveCall = ({ directory, name }, options) =>
      nfs.remove(directory, name, { ...options, expected: 'anything' });
    try {
      if (parent !== undefined) await remove({ parent, name: Buffer.from(hidden.name) }, request, call);
      else await hiddenNameCalls.asCallerOnly(hidden, request, (options) => call(hidden, options));
      charges.recordRemoval(id, before);
    } catch (cause) {
      // The hidden name is gone: another client removed it, or an earlier REMOVE of this client whose reply was lost.
      if (!isNfsError(cause, 'NOENT', 'STALE')) throw cause;
    }
    // The kernel may have forgotten the file, if the closing process was interrupted.
    if (nodes.hiddenName(id)?.name === hidden.name) clearHidden(id);
  }

  async function renameAndRemove(
    id: number,
    { entryName, resolved: there, isReplaced, perform: take }: NameRemoval,
    request: Request,
  ): Promise<void> {
    const hidden: HiddenName = { directory: server.node(entryName.parent).handle, name: newHiddenName() };
    const name = Buffer.from(hidden.name);
    const isRecorded = (): boolean => nodes.hiddenName(id)?.name === hidden.name;
    nodes.setHiddenName(id, hidden);
    /** The hidden name was added as a second link. */
    let isAdded = false;
    try {
      isAdded = isReplaced && (await hiddenNameCalls.addName(id, { parent: entryName.parent, name }, request));
      if (!isAdded) await hiddenNameCalls.move(entryName, name, there, request);
    } catch (cause) {
      if (isNotExecuted(cause) && isRecorded()) clearHidden(id);
      throw cause;
    }
    if (isRecorded()) {
      attributes.setHidden(id, true);
      attributes.expire(id);
      hiddenBy.set(id, { uid: request.uid, gid: request.gid });
    }
    let hasHiddenName = true;
    const undo = async (): Promise<void> => {
      // If this fails, the last close removes it.
      if (isAdded) await removeHidden(id, hidden, request);
      hasHiddenName = false;
      if (isRecorded()) clearHidden(id);
      // If this fails, leave the file: the caller gets an error that says nothing was done.
      if (!isAdded) await hiddenNameCalls.move({ parent: entryName.parent, name }, entryName.name, there, request);
    };
    try {
      await take(true, request);
    } catch (cause) {
      if (isNotExecuted(cause)) await undo().catch(() => undefined);
      throw cause;
    } finally {
      // The file was closed meanwhile, perhaps by an interrupted process, before the hidden name was known to exist.
      if (hasHiddenName && !isOpen(id))
        await whileRemoving(id, () => removeHidden(id, hidden, request)).catch(() => undefined);
    }
  }

  async function removeHiddenIfClosed(id: number, request: Request): Promise<void> {
    const readyNow = ready();
    if (readyNow !== undefined) await waitFor(request, (signal) => unlessAborted(readyNow, signal));
    using _removing = await lockFile(id, request);
    const hidden = nodes.hiddenName(id);
    // Hiding failed, or the file was reopened; then the next close removes the name.
    if (hidden === undefined || isOpen(id)) return;
    await whileRemoving(id, async () => {
      const caller = hiddenBy.get(id) ?? (await hiddenNameCalls.ownerOf(hidden, request));
      await removeHidden(id, hidden, withIdentity(request, caller));
    });
  }

  const removeAfterLastClose: SillyRename['removeAfterLastClose'] = (id, request) =>
    nodes.hiddenName(id) === undefined ? undefined : removeHiddenIfClosed(id, request);

  function endOpening(id: number): void {
    const others = (openings.get(id) ?? 0) - 1;
    if (others > 0) openings.set(id, others);
    else openings.delete(id);
  }

  return {
    removeAfterLastClose,
    forget: (id) => void hiddenBy.delete(id),
    removeName: async (removal, request) => {
      const { resolved: there, perform: take } = removal;
      const id = nodes.find(there.handle)?.id;
      if (id === undefined) return await take(false, request);
      using lockScope = new DisposableStack();
      lockScope.use(await lockFile(id, request));
      const takeOnly = () => whileRemoving(id, () => take(false, request));
      if (!isOpen(id)) return await takeOnly();
      const before = nodes.hiddenName(id);
      if (
        before !== undefined &&
        (await hiddenNameCalls.hasHiddenName(before, there, withIdentity(request, hiddenBy.get(id) ?? request)))
      )
        return await takeOnly();
      const fileLock = lockScope.move();
      await runToCompletion(request, (ownRequest) =>
        renameAndRemove(id, removal, ownRequest).finally(() => fileLock.dispose()),
      );
    },
    runOpen: async (id, request, open) => {
      openings.set(id, (openings.get(id) ?? 0) + 1);
      try {
        if (removing.has(id)) (await lockFile(id, request))[Symbol.dispose]();
        const result = await open();
        endOpening(id);
        return result;
      } catch (cause) {
        endOpening(id);
        // The file may have been hidden only because of this open, or left hidden by an earlier close.
        if (!isOpen(id) && nodes.hiddenName(id) !== undefined)
          await runToCompletion(request, async (ownRequest) => await removeAfterLastClose(id, ownRequest)).catch(
            () => undefined,
          );
        throw cause;
      }
    },
  };
}
