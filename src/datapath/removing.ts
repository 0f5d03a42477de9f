import { randomBytes } from 'node:crypto';
import { createKeyedLock } from '#base/keyed-lock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import type { Place, Wcc } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { changing } from './attributes.ts';
import type { Context } from './context.ts';
import type { Entries, There } from './entries.ts';
import { isDefinite } from './errors.ts';
import type { Who } from './identity.ts';
import { keyOf } from './name-cache.ts';
import type { Hidden, Node } from './ports.ts';
import type { Charges } from './quota/charges.ts';
import { isSame } from './server.ts';
import { until } from './until.ts';

export interface Removing extends Pick<Operations, 'unlink' | 'rmdir'> {
  /**
   * Gives another name to what is removed, if it is open: NFS has no files without a name. Undefined: that is not
   * needed. Else nothing becomes of that name until what is given is disposed of.
   */
  hide(parent: number, name: Buffer, there: There, request: Request): Promise<Hiding | undefined>;
  /** A file was closed for the last time: the name that it was given goes. Undefined: it was given none. */
  closed(id: number, request: Request): Promise<void> | undefined;
}

export interface Hiding extends Disposable {
  /** Gives it back the name that it had. */
  undo(): Promise<void>;
}

export interface RemovingParts {
  readonly charges: Pick<Charges, 'leaving' | 'removed'>;
  /** Gives something to wait for before a hidden name is removed: whoever closes a file cannot be held back before that. */
  readonly ready: () => Promise<void> | undefined;
}

/** As other NFS clients call them: backup programs leave them out. */
const hiddenName = (): string => `.nfs${randomBytes(12).toString('hex')}`;

export function createRemoving(context: Context, entries: Entries, { charges, ready }: RemovingParts): Removing {
  const { nfs, nodes, server, attributes, names, proofs, clock, patience, closing } = context;
  /** Who hid a file; whoever closes it last may be somebody else, or nobody in particular. */
  const hiders = new Map<number, Who>();
  /** By file. The server may do first what it was sent last: a name that is removed before it is given stays for ever. */
  const hiding = createKeyedLock();
  const alone = (id: number, request: Request): Promise<Disposable> =>
    patience(request, (signal) => hiding.hold([String(id)], signal));

  const gone = (parent: number, name: Buffer): void =>
    names.set(parent, keyOf(name), { meant: undefined, at: clock.elapsed(), since: attributes.now() });

  /** What the request removes. Undefined: a predecessor has removed it already. */
  async function target(parent: number, name: Buffer, request: Request): Promise<There | undefined> {
    const before = proofs.find(request.place);
    if (before?.kind === 'gone') {
      const there = await entries.find(parent, name, request);
      return there !== undefined && isSame(there.handle, before.handle) ? there : undefined;
    }
    const there = (await entries.meant(parent, name, request)) ?? (await entries.find(parent, name, request));
    if (there === undefined) throw new Errno('ENOENT');
    proofs.write(request.place, { kind: 'gone', handle: there.handle });
    return there;
  }

  /** The file has no hidden name any more, which was not counted among its links. */
  function shown(id: number): void {
    nodes.hide(id, undefined);
    attributes.hides(id, false);
  }

  async function move(parent: number, from: Buffer, to: Buffer, request: Request): Promise<void> {
    const send = () =>
      server.on(request, parent, (directory, options) =>
        nfs.rename({ directory, name: from }, { directory, name: to }, options),
      );
    await changing(attributes, parent, send, ({ to: change }) => change);
    gone(parent, from);
    names.drop(parent, keyOf(to));
  }

  /** Whether the file has the other name already: a predecessor gave it. */
  async function isAt({ directory, name }: Hidden, there: There, request: Request): Promise<boolean> {
    const found = await server
      .apart(request, (options) => nfs.lookup(directory, name, options))
      .catch((cause: unknown) => {
        if (!isNfsError(cause, 'NOENT')) throw cause;
        return undefined;
      });
    return found !== undefined && isSame(found.handle, there.handle);
  }

  const openedAs = ({ handle }: There): Node | undefined => {
    const node = nodes.find(handle);
    return node === undefined || node.opens === 0 ? undefined : node;
  };

  const hide: Removing['hide'] = async (parent, name, there, request) => {
    const opened = openedAs(there);
    if (opened === undefined) return undefined;
    using held = new DisposableStack();
    held.use(await alone(opened.id, request));
    const node = openedAs(there);
    if (node === undefined) return undefined;
    const before = nodes.hidden(node.id);
    if (before !== undefined && (await isAt(before, there, request))) return undefined;
    const hidden = before ?? { directory: server.node(parent).handle, name: hiddenName() };
    const to = Buffer.from(hidden.name);
    if (before === undefined) nodes.hide(node.id, hidden);
    try {
      await move(parent, name, to, request);
    } catch (cause) {
      if (isDefinite(cause)) shown(node.id);
      throw cause;
    }
    attributes.hides(node.id, true);
    attributes.expire(node.id);
    hiders.set(node.id, { uid: request.uid, gid: request.gid });
    const still = held.move();
    return {
      undo: async () => {
        await move(parent, to, name, request);
        shown(node.id);
      },
      [Symbol.dispose]: () => still.dispose(),
    };
  };

  async function remove(
    parent: number,
    name: Buffer,
    request: Request,
    call: (place: Place, options: CallOptions) => Promise<Wcc>,
  ): Promise<void> {
    const send = () => server.on(request, parent, (directory, options) => call({ directory, name }, options));
    await changing(attributes, parent, send, (change) => change);
    gone(parent, name);
  }

  /** Whose right it is to remove the hidden name, if it is not known who gave it: the directory's owner. */
  async function ownerOf(hidden: Hidden, request: Request): Promise<Who> {
    return await server.apart(request, (options) => nfs.getattr(hidden.directory, options));
  }

  async function removeHidden(id: number, request: Request): Promise<void> {
    const first = ready();
    if (first !== undefined) await patience(request, (signal) => until(first, signal));
    using _removing = await alone(id, request);
    const hidden = nodes.hidden(id);
    // It could not be hidden after all; or it was opened meanwhile, by another of its names, and goes when that is closed.
    if (hidden === undefined || nodes.get(id)?.opens !== 0) return;
    const who = hiders.get(id) ?? (await ownerOf(hidden, request));
    hiders.delete(id);
    const parent = nodes.find(hidden.directory)?.id;
    const asHider: Request = withIdentity(request, who);
    const before = await charges.leaving(id, request);
    try {
      if (parent !== undefined)
        await remove(parent, Buffer.from(hidden.name), asHider, ({ directory }, options) =>
          nfs.remove(directory, hidden.name, options),
        );
      else await server.apart(asHider, (options) => nfs.remove(hidden.directory, hidden.name, options));
      charges.removed(id, before);
    } catch (cause) {
      // Somebody has cleared it away already.
      if (!isNfsError(cause, 'NOENT', 'STALE')) throw cause;
    }
    shown(id);
    // It may have other names.
    attributes.expire(id);
  }

  return {
    hide,
    unlink: async (parent, name, request) => {
      const there = await target(parent, name, request);
      if (there === undefined) return;
      using hidden = await hide(parent, name, there, request);
      if (hidden !== undefined) return;
      const id = nodes.find(there.handle)?.id;
      const before = await charges.leaving(id, request);
      await remove(parent, name, request, ({ directory }, options) => nfs.remove(directory, name, options));
      charges.removed(id, before);
      if (id !== undefined) attributes.expire(id);
    },
    rmdir: async (parent, name, request) => {
      const there = await target(parent, name, request);
      if (there === undefined) return;
      await closing.gone(there.handle, request);
      try {
        await remove(parent, name, request, ({ directory }, options) => nfs.rmdir(directory, name, options));
      } catch (cause) {
        throw isNfsError(cause, 'EXIST') ? new Errno('ENOTEMPTY', cause) : cause;
      }
      const id = nodes.find(there.handle)?.id;
      if (id !== undefined) attributes.expire(id);
    },
    closed: (id, request) => (nodes.hidden(id) === undefined ? undefined : removeHidden(id, request)),
  };
}

/** The same request, by somebody else. Its signal is made when it is asked for. */
const withIdentity = (request: Request, { uid, gid }: Who): Request => ({
  ...{ uid, gid, pid: request.pid, place: request.place, resent: request.resent },
  get signal() {
    return request.signal;
  },
});
