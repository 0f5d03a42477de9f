import { randomBytes } from 'node:crypto';
import { unlessAborted } from '#base/aborted.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { isNfsError, NfsError } from '#wire/nfs3/status.ts';
import type { DirOpArgs, FileHandle, Wcc } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { recordChange } from './attribute-cache.ts';
import type { Context } from './context.ts';
import type { ResolvedName } from './entries.ts';
import { asErrno, isNotExecuted } from './errors.ts';
import { isSame } from './file-handles.ts';
import type { Caller } from './identity.ts';
import { keyOf } from './name-cache.ts';
import type { HiddenName } from './ports.ts';
import type { Charges } from './quota/charges.ts';

/** NFS has no open files without a name: an open file gets a hidden name (silly rename) before it loses its own. */
export interface SillyRename {
  /**
   * Removes a name from an object. An open file gets a hidden name first, and keeps or regains its own if `take` is
   * refused. Other changes to its names wait meanwhile.
   */
  removeName(removal: NameRemoval, request: Request): Promise<void>;
  /** Runs an open. The file counts as open until that fails. */
  opening<R>(id: number, request: Request, open: () => Promise<R>): Promise<R>;
  /** Removes the hidden name after the last close. Undefined: it has none. */
  closed(id: number, request: Request): Promise<void> | undefined;
  /** The kernel has forgotten the node. */
  forget(id: number): void;
}

export interface EntryName {
  readonly parent: number;
  readonly name: Buffer;
}

export interface NameRemoval {
  /**
   * Must not lie in the request's memory, nor anything `take` uses (see `copyEntryName`): the request may be answered
   * before this ends.
   */
  readonly at: EntryName;
  readonly there: ResolvedName;
  /** Another object takes over the name. Until then the name must refer to this object, even after a crash. */
  readonly isReplaced: boolean;
  /** `isHidden`: the object has a hidden name; if nothing replaces it, it has already lost this one. */
  readonly take: (isHidden: boolean, request: Request) => Promise<void>;
}

export const copyEntryName = ({ parent, name }: EntryName): EntryName => ({ parent, name: Buffer.from(name) });

export type CallOnPlace = (place: DirOpArgs, options: CallOptions) => Promise<Wcc>;

export interface SillyRenameParts {
  readonly charges: Pick<Charges, 'leaving' | 'removed'>;
  /** Resolves when hidden names may be removed: RELEASE itself cannot be delayed until then. */
  readonly ready: () => Promise<void> | undefined;
  readonly remove: (at: EntryName, request: Request, call: CallOnPlace) => Promise<void>;
  /** Records that the name is absent. */
  readonly gone: (at: EntryName) => void;
}

/** The form that other NFS clients use: backup programs skip them. */
const hiddenName = (): string => `.nfs${randomBytes(12).toString('hex')}`;

const never = new AbortController().signal;

export function createSillyRename(context: Context, { charges, ready, remove, gone }: SillyRenameParts): SillyRename {
  const { nfs, nodes, server, attributes, names, waitFor } = context;
  /** Who hid a file: the last close may come from another user, or from none. */
  const hiders = new Map<number, Caller>();
  /** OPENs in progress, by file. The journal counts them when they have succeeded. */
  const openings = new Map<number, number>();
  /** Files that are not open and may be losing their last name. */
  const leaving = new Set<number>();
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
    const end = work({ uid, gid, pid, resent, place: -1, signal: never }).catch((cause: unknown) => {
      throw asErrno(cause);
    });
    return waitFor(request, (signal) => unlessAborted(end, signal));
  }

  async function whileLeaving(id: number, work: () => Promise<void>): Promise<void> {
    leaving.add(id);
    try {
      await work();
    } finally {
      leaving.delete(id);
      // The next open must ask the server.
      attributes.expire(id);
    }
  }

  /** The file has no hidden name any more. It was not counted in the link count shown. */
  function clearHidden(id: number): void {
    nodes.hide(id, undefined);
    attributes.setHidden(id, false);
    attributes.expire(id);
    hiders.delete(id);
  }

  async function move(
    { parent, name: from }: EntryName,
    to: Buffer,
    { handle: meant }: ResolvedName,
    request: Request,
  ): Promise<void> {
    const send = () =>
      server.on(request, parent, (directory, options) =>
        nfs.rename(
          { directory, name: from },
          { directory, name: to },
          { ...withoutDeadline(options), expected: meant },
        ),
      );
    await recordChange(attributes, parent, send, ({ to: change }) => change);
    gone({ parent, name: from });
    names.drop(parent, keyOf(to));
  }

  /** Adds a name. False: the server cannot or will not. */
  async function addName(id: number, { parent, name }: EntryName, request: Request): Promise<boolean> {
    const link = (file: FileHandle, directory: FileHandle, options: CallOptions) =>
      nfs.link(file, { directory, name }, withoutDeadline(options));
    const send = () => server.onTwo(request, id, parent, link, false);
    const onFile = () => recordChange(attributes, id, send, ({ attributes: after }) => ({ before: undefined, after }));
    try {
      await recordChange(attributes, parent, onFile, ({ change }) => change);
    } catch (cause) {
      if (cause instanceof NfsError) return false;
      throw cause;
    }
    names.drop(parent, keyOf(name));
    return true;
  }

  /** The directory's owner may remove a hidden name of unknown origin. */
  const ownerOf = async ({ directory }: HiddenName, request: Request): Promise<Caller> =>
    await server.asCallerOnly(request, (options) => nfs.getattr(directory, options));

  /**
   * For a directory that the kernel does not know or has not checked the caller for: which group would permit access is
   * unknown.
   */
  async function asCallerOnly<R>(
    hidden: HiddenName,
    request: Request,
    call: (options: CallOptions) => Promise<R>,
  ): Promise<R> {
    return await server.asCallerOnly(request, call).catch(async (cause: unknown) => {
      if (!isNfsError(cause, 'ACCES')) throw cause;
      return await server.asCallerOnly(withIdentity(request, await ownerOf(hidden, request)), call);
    });
  }

  /**
   * Whether the file still has its hidden name. The caller may be removing another name in another directory, and need
   * not have access to this one.
   */
  async function isAt(id: number, hidden: HiddenName, there: ResolvedName, request: Request): Promise<boolean> {
    const asker = withIdentity(request, hiders.get(id) ?? request);
    const lookup = (options: CallOptions) => nfs.lookup(hidden.directory, hidden.name, options);
    const found = await asCallerOnly(hidden, asker, lookup).catch((cause: unknown) => {
      if (!isNfsError(cause, 'NOENT', 'STALE')) throw cause;
      return undefined;
    });
    return found !== undefined && isSame(found.handle, there.handle);
  }

  async function removeHidden(id: number, hidden: HiddenName, request: Request): Promise<void> {
    const parent = nodes.find(hidden.directory)?.id;
    const before = await charges.leaving(id, request);
    const call: CallOnPlace = ({ directory, name }, options) =>
      nfs.remove(directory, name, { ...options, expected: 'anything' });
    try {
      if (parent !== undefined) await remove({ parent, name: Buffer.from(hidden.name) }, request, call);
      else await asCallerOnly(hidden, request, (options) => call(hidden, options));
      charges.removed(id, before);
    } catch (cause) {
      // It is gone already: another client removed it, or an earlier REMOVE of ours whose answer was lost.
      if (!isNfsError(cause, 'NOENT', 'STALE')) throw cause;
    }
    // The kernel may have forgotten the file, if the closing process was interrupted.
    if (nodes.hidden(id)?.name === hidden.name) clearHidden(id);
  }

  async function renameAndRemove(
    id: number,
    { at, there, isReplaced, take }: NameRemoval,
    request: Request,
  ): Promise<void> {
    const hidden: HiddenName = { directory: server.node(at.parent).handle, name: hiddenName() };
    const name = Buffer.from(hidden.name);
    const isRecorded = (): boolean => nodes.hidden(id)?.name === hidden.name;
    nodes.hide(id, hidden);
    /** Added beside its own name. */
    let isAdded = false;
    try {
      isAdded = isReplaced && (await addName(id, { parent: at.parent, name }, request));
      if (!isAdded) await move(at, name, there, request);
    } catch (cause) {
      if (isNotExecuted(cause) && isRecorded()) clearHidden(id);
      throw cause;
    }
    if (isRecorded()) {
      attributes.setHidden(id, true);
      attributes.expire(id);
      hiders.set(id, { uid: request.uid, gid: request.gid });
    }
    let isThere = true;
    const undo = async (): Promise<void> => {
      // If this fails, the last close removes it.
      if (isAdded) await removeHidden(id, hidden, request);
      isThere = false;
      if (isRecorded()) clearHidden(id);
      // If this fails, leave the file: the caller gets an error that says nothing was done.
      if (!isAdded) await move({ parent: at.parent, name }, at.name, there, request);
    };
    try {
      await take(true, request);
    } catch (cause) {
      if (isNotExecuted(cause)) await undo().catch(() => undefined);
      throw cause;
    } finally {
      // The file was closed meanwhile, perhaps by an interrupted process, before the hidden name was known to exist.
      if (isThere && !isOpen(id))
        await whileLeaving(id, () => removeHidden(id, hidden, request)).catch(() => undefined);
    }
  }

  async function removeHiddenIfClosed(id: number, request: Request): Promise<void> {
    const first = ready();
    if (first !== undefined) await waitFor(request, (signal) => unlessAborted(first, signal));
    using _removing = await lockFile(id, request);
    const hidden = nodes.hidden(id);
    // Hiding failed, or the file was reopened; then the next close removes the name.
    if (hidden === undefined || isOpen(id)) return;
    await whileLeaving(id, async () => {
      const who = hiders.get(id) ?? (await ownerOf(hidden, request));
      await removeHidden(id, hidden, withIdentity(request, who));
    });
  }

  const closed: SillyRename['closed'] = (id, request) =>
    nodes.hidden(id) === undefined ? undefined : removeHiddenIfClosed(id, request);

  function opened(id: number): void {
    const others = (openings.get(id) ?? 0) - 1;
    if (others > 0) openings.set(id, others);
    else openings.delete(id);
  }

  return {
    closed,
    forget: (id) => void hiders.delete(id),
    removeName: async (removal, request) => {
      const { there, take } = removal;
      const id = nodes.find(there.handle)?.id;
      if (id === undefined) return await take(false, request);
      using held = new DisposableStack();
      held.use(await lockFile(id, request));
      const takeOnly = () => whileLeaving(id, () => take(false, request));
      if (!isOpen(id)) return await takeOnly();
      const before = nodes.hidden(id);
      if (before !== undefined && (await isAt(id, before, there, request))) return await takeOnly();
      const still = held.move();
      await runToCompletion(request, (itself) => renameAndRemove(id, removal, itself).finally(() => still.dispose()));
    },
    opening: async (id, request, open) => {
      openings.set(id, (openings.get(id) ?? 0) + 1);
      try {
        if (leaving.has(id)) (await lockFile(id, request))[Symbol.dispose]();
        const result = await open();
        opened(id);
        return result;
      } catch (cause) {
        opened(id);
        // The file may have been hidden only because of this open, or left hidden by an earlier close.
        if (!isOpen(id) && nodes.hidden(id) !== undefined)
          await runToCompletion(request, async (itself) => await closed(id, itself)).catch(() => undefined);
        throw cause;
      }
    },
  };
}

/** Also on a `soft` mount: only the waiting requester gives up. */
export const withoutDeadline = (options: CallOptions): CallOptions => ({
  ...options,
  deadlineMs: Number.POSITIVE_INFINITY,
});

/** The same request with another identity. A getter creates the signal only when it is used. */
const withIdentity = (request: Request, { uid, gid }: Caller): Request => ({
  uid,
  gid,
  pid: request.pid,
  place: request.place,
  resent: request.resent,
  get signal() {
    return request.signal;
  },
});
