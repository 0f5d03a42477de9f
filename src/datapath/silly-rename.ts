import { randomBytes } from 'node:crypto';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { isNfsError, NfsError } from '#wire/nfs3/status.ts';
import type { FileHandle, Place, Wcc } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { changing } from './attribute-cache.ts';
import type { Context } from './context.ts';
import type { ResolvedName } from './entries.ts';
import { asErrno, isDefiniteRefusal } from './errors.ts';
import type { Caller } from './identity.ts';
import { keyOf } from './name-cache.ts';
import type { Hidden } from './ports.ts';
import type { Charges } from './quota/charges.ts';
import { isSame } from './server.ts';
import { unlessAborted } from './unless-aborted.ts';

/** NFS has no files without a name: one that is open gets another before it loses its own, a hidden one. */
export interface SillyRename {
  /**
   * Has a name taken away from what is there. What is open gets a hidden name before, and keeps its own, or gets it back, if
   * `take` is refused. Nothing else becomes of its names meanwhile.
   */
  removeName(removal: NameRemoval, request: Request): Promise<void>;
  /** A file is being opened: until that has failed, it is open. */
  opening<R>(id: number, request: Request, open: () => Promise<R>): Promise<R>;
  /** A file was closed for the last time: the name that it was given goes. Undefined: it was given none. */
  closed(id: number, request: Request): Promise<void> | undefined;
  /** The kernel no longer knows the node. */
  forget(id: number): void;
}

export interface EntryName {
  readonly parent: number;
  readonly name: Buffer;
}

export interface NameRemoval {
  /** Not in the memory of the request, nor anything that `take` goes by (see `copyEntryName`): it may be answered before this ends. */
  readonly at: EntryName;
  readonly there: ResolvedName;
  /** Something else gets the name: until then it must mean what is there, whatever ends half-way. */
  readonly isReplaced: boolean;
  /** `isHidden`: what is there has a hidden name. If nothing else gets the name, it has lost that already. */
  readonly take: (isHidden: boolean, request: Request) => Promise<void>;
}

export const copyEntryName = ({ parent, name }: EntryName): EntryName => ({ parent, name: Buffer.from(name) });

export type CallOnPlace = (place: Place, options: CallOptions) => Promise<Wcc>;

export interface SillyRenameParts {
  readonly charges: Pick<Charges, 'leaving' | 'removed'>;
  /** Gives something to wait for before a hidden name is removed: whoever closes a file cannot be held back before that. */
  readonly ready: () => Promise<void> | undefined;
  readonly remove: (at: EntryName, request: Request, call: CallOnPlace) => Promise<void>;
  /** The name means nothing any more. */
  readonly gone: (at: EntryName) => void;
}

/** As other NFS clients call them: backup programs leave them out. */
const hiddenName = (): string => `.nfs${randomBytes(12).toString('hex')}`;

const never = new AbortController().signal;

export function createSillyRename(context: Context, { charges, ready, remove, gone }: SillyRenameParts): SillyRename {
  const { nfs, nodes, server, attributes, names, waitFor } = context;
  /** Who hid a file; whoever closes it last may be somebody else, or nobody in particular. */
  const hiders = new Map<number, Caller>();
  /** OPENs under way, by file. They are counted in the journal when they have succeeded. */
  const openings = new Map<number, number>();
  /** Files that may be about to lose their last name, with what is open of them: nothing. */
  const leaving = new Set<number>();
  /** By file. The server may do first what it was sent last: a name that is removed before it is given stays for ever. */
  const lock = createKeyedLock();
  const lockFile = (id: number, request: Request): Promise<Disposable> =>
    waitFor(request, (signal) => lock.hold([String(id)], signal));

  const isOpen = (id: number): boolean => openings.has(id) || (nodes.get(id)?.opens ?? 0) > 0;

  /**
   * Goes on also when whoever asked for it is let go: the server may do a call that was given up at any time later, and until it
   * has answered nobody can tell what becomes of the name.
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
      // Whoever opens it asks the server, whatever was known.
      attributes.expire(id);
    }
  }

  /** The file has no hidden name any more, which was not counted among its links. */
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
        nfs.rename({ directory, name: from }, { directory, name: to }, { ...withoutDeadline(options), meant }),
      );
    await changing(attributes, parent, send, ({ to: change }) => change);
    gone({ parent, name: from });
    names.drop(parent, keyOf(to));
  }

  /** Gives it one more name. False: the server cannot do that, or does not want to. */
  async function addName(id: number, { parent, name }: EntryName, request: Request): Promise<boolean> {
    const link = (file: FileHandle, directory: FileHandle, options: CallOptions) =>
      nfs.link(file, { directory, name }, withoutDeadline(options));
    const send = () => server.onTwo(request, id, parent, link, false);
    const onFile = () => changing(attributes, id, send, ({ attributes: after }) => ({ before: undefined, after }));
    try {
      await changing(attributes, parent, onFile, ({ change }) => change);
    } catch (cause) {
      if (cause instanceof NfsError) return false;
      throw cause;
    }
    names.drop(parent, keyOf(name));
    return true;
  }

  /** The owner of the directory has the right to remove a hidden name, if it is not known who gave it. */
  const ownerOf = async ({ directory }: Hidden, request: Request): Promise<Caller> =>
    await server.asCallerOnly(request, (options) => nfs.getattr(directory, options));

  /** In a directory that the kernel does not know, or that he was not checked for: by which group he might use it is not known. */
  async function asCallerOnly<R>(
    hidden: Hidden,
    request: Request,
    call: (options: CallOptions) => Promise<R>,
  ): Promise<R> {
    return await server.asCallerOnly(request, call).catch(async (cause: unknown) => {
      if (!isNfsError(cause, 'ACCES')) throw cause;
      return await server.asCallerOnly(withIdentity(request, await ownerOf(hidden, request)), call);
    });
  }

  /**
   * Whether the file has that name: it was hidden before, and nobody has cleared it away. Whoever takes another name from it, in
   * another directory perhaps, need not be allowed to look there.
   */
  async function isAt(id: number, hidden: Hidden, there: ResolvedName, request: Request): Promise<boolean> {
    const asker = withIdentity(request, hiders.get(id) ?? request);
    const lookup = (options: CallOptions) => nfs.lookup(hidden.directory, hidden.name, options);
    const found = await asCallerOnly(hidden, asker, lookup).catch((cause: unknown) => {
      if (!isNfsError(cause, 'NOENT', 'STALE')) throw cause;
      return undefined;
    });
    return found !== undefined && isSame(found.handle, there.handle);
  }

  async function removeHidden(id: number, hidden: Hidden, request: Request): Promise<void> {
    const parent = nodes.find(hidden.directory)?.id;
    const before = await charges.leaving(id, request);
    const call: CallOnPlace = ({ directory, name }, options) =>
      nfs.remove(directory, name, { ...options, meant: 'anything' });
    try {
      if (parent !== undefined) await remove({ parent, name: Buffer.from(hidden.name) }, request, call);
      else await asCallerOnly(hidden, request, (options) => call(hidden, options));
      charges.removed(id, before);
    } catch (cause) {
      // Somebody has cleared it away already.
      if (!isNfsError(cause, 'NOENT', 'STALE')) throw cause;
    }
    // The kernel may have forgotten it, if whoever closed it was let go.
    if (nodes.hidden(id)?.name === hidden.name) clearHidden(id);
  }

  async function renameAndRemove(
    id: number,
    { at, there, isReplaced, take }: NameRemoval,
    request: Request,
  ): Promise<void> {
    const hidden: Hidden = { directory: server.node(at.parent).handle, name: hiddenName() };
    const name = Buffer.from(hidden.name);
    const isRecorded = (): boolean => nodes.hidden(id)?.name === hidden.name;
    nodes.hide(id, hidden);
    /** Beside its own. */
    let isAdded = false;
    try {
      isAdded = isReplaced && (await addName(id, { parent: at.parent, name }, request));
      if (!isAdded) await move(at, name, there, request);
    } catch (cause) {
      if (isDefiniteRefusal(cause) && isRecorded()) clearHidden(id);
      throw cause;
    }
    if (isRecorded()) {
      attributes.setHidden(id, true);
      attributes.expire(id);
      hiders.set(id, { uid: request.uid, gid: request.gid });
    }
    let isThere = true;
    const undo = async (): Promise<void> => {
      // If this fails, it goes with the last close.
      if (isAdded) await removeHidden(id, hidden, request);
      isThere = false;
      if (isRecorded()) clearHidden(id);
      // If this fails, it is better left than removed: whoever asked is told that nothing was done.
      if (!isAdded) await move({ parent: at.parent, name }, at.name, there, request);
    };
    try {
      await take(true, request);
    } catch (cause) {
      if (isDefiniteRefusal(cause)) await undo().catch(() => undefined);
      throw cause;
    } finally {
      // It was closed meanwhile, perhaps by somebody who was let go before its hidden name was known to be there.
      if (isThere && !isOpen(id))
        await whileLeaving(id, () => removeHidden(id, hidden, request)).catch(() => undefined);
    }
  }

  async function removeHiddenIfClosed(id: number, request: Request): Promise<void> {
    const first = ready();
    if (first !== undefined) await waitFor(request, (signal) => unlessAborted(first, signal));
    using _removing = await lockFile(id, request);
    const hidden = nodes.hidden(id);
    // It could not be hidden after all; or it was opened meanwhile, and goes when that is closed.
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
    ...{ closed, forget: (id) => void hiders.delete(id) },
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
        // It may have been hidden only for this, or left by whoever closed it.
        if (!isOpen(id) && nodes.hidden(id) !== undefined)
          await runToCompletion(request, async (itself) => await closed(id, itself)).catch(() => undefined);
        throw cause;
      }
    },
  };
}

/** Also on a `soft` mount: only whoever waits for it is let go. */
export const withoutDeadline = (options: CallOptions): CallOptions => ({
  ...options,
  deadlineMs: Number.POSITIVE_INFINITY,
});

/** The same request, by somebody else. Its signal is made when it is asked for. */
const withIdentity = (request: Request, { uid, gid }: Caller): Request => ({
  ...{ uid, gid, pid: request.pid, place: request.place, resent: request.resent },
  get signal() {
    return request.signal;
  },
});
