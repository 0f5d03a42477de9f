import { Errno } from '#wire/fuse/errno.ts';
import { invalidateInode } from '#wire/fuse/notify.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import type { AttributeCache } from './attribute-cache.ts';
import type { Calls } from './calls.ts';
import { isStale } from './errors.ts';
import { access, areSameRights, type Caller, type Identities, type Rights } from './identity.ts';
import type { NameCache } from './name-cache.ts';
import { openerOf } from './open-files.ts';
import type { Node, Nodes } from './ports.ts';
import { isUnchanged } from './wcc-chain.ts';

type OnOne<R> = (handle: FileHandle, options: CallOptions) => Promise<R>;
type OnTwo<R> = (one: FileHandle, other: FileHandle, options: CallOptions) => Promise<R>;

/** The NFS server as one mount sees it: calls on nodes, on behalf of a request. */
export interface Server {
  node(id: number): Node;
  /** `needs`: one of `access`; default: the right to change names in a directory. */
  on<R>(request: Request, id: number, call: OnOne<R>, needs?: number, who?: Caller): Promise<R>;
  /**
   * Calls through an open file with its opener's identity, which the kernel checked at open. Uses the file's current
   * group: if another process changes the group, a reader can continue and no acknowledged data are lost.
   */
  onOpen<R>(request: Request, id: number, fh: number, call: OnOne<R>, needs: number): Promise<R>;
  /** For two directories. `isChecked` false: the first is a file that the kernel has not checked the caller for. */
  onTwo<R>(request: Request, one: number, other: number, call: OnTwo<R>, isChecked?: boolean): Promise<R>;
  /** For an object unknown to the kernel: the caller alone, without any object's group. */
  asCallerOnly<R>(request: Request, call: (options: CallOptions) => Promise<R>): Promise<R>;
  /** Gets the attributes of a node from the server. */
  look(request: Request, id: number): Promise<Attributes>;
  /** Records where a node was seen last; the key has one character per byte of the name. */
  seen(id: number, parent: number, key: string): void;
  isDirectory(id: number): void;
  /** At most `most` nodes, least recently seen first. */
  oldest(most: number): readonly SeenNode[];
  forget(id: number): void;
}

export interface ServerParts {
  readonly nfs: NfsClient;
  readonly nodes: Nodes;
  readonly attributes: AttributeCache;
  readonly names: Pick<NameCache, 'drop'>;
  readonly identities: Identities;
  readonly calls: Calls;
  /** Sends a notification to the kernel. */
  readonly notify: (bytes: Buffer) => void;
}

interface Seen {
  readonly parent: number;
  readonly key: string;
}

/** A node and where it was last seen. */
export interface SeenNode extends Seen {
  readonly id: number;
  readonly isDirectory: boolean;
}

/** Deeper paths exceed the kernel's limit. */
const deepest = 2048;

export function createServer({ nfs, nodes, attributes, names, identities, calls, notify }: ServerParts): Server {
  /** Least recently seen first. */
  const places = new Map<number, Seen>();
  const directories = new Set<number>();

  function node(id: number): Node {
    const found = nodes.get(id);
    if (found === undefined) throw new Errno('ESTALE');
    return found;
  }

  const ask = <R>(request: Request, credential: Buffer, id: number, call: OnOne<R>): Promise<R> =>
    calls.ask(request, credential, (options) => call(node(id).handle, options));

  const getattr = (request: Request, id: number): Promise<Attributes> =>
    ask(request, identities.credential(request, access.none), id, (handle, options) => nfs.getattr(handle, options));

  /** The handle is stale; the server may have a new one for the same file at the same path. */
  async function findAgain(request: Request, id: number, depth: number): Promise<void> {
    const place = places.get(id);
    const known = attributes.last(id);
    if (place === undefined || known === undefined || depth > deepest) return;
    const name = Buffer.from(place.key, 'latin1');
    const lookup = () => {
      const credential = identities.credential(request, access.search, attributes.kernelRights(place.parent));
      return ask(request, credential, place.parent, (handle, options) => nfs.lookup(handle, name, options));
    };
    const found = await lookup().catch(async (cause: unknown) => {
      if (!isStale(cause)) throw cause;
      await findAgain(request, place.parent, depth + 1);
      return await lookup();
    });
    const since = attributes.now();
    const now = found.attributes ?? (await asCallerOnly(request, (options) => nfs.getattr(found.handle, options)));
    // File ids are reused, so more must match.
    if (now.fileId !== known.fileId || now.type !== known.type || !isUnchanged(now, known)) return;
    nodes.changeHandle(id, found.handle);
    attributes.update(id, now, since);
  }

  /** The directories of the path may have been replaced, too. */
  function dropPath(id: number): void {
    let place = places.get(id);
    for (let depth = 0; place !== undefined && depth < deepest; depth++) {
      names.drop(place.parent, place.key);
      place = places.get(place.parent);
    }
  }

  async function learn(request: Request, id: number): Promise<Attributes> {
    const since = attributes.now();
    const found = await getattr(request, id);
    attributes.update(id, found, since);
    return found;
  }

  /**
   * The server refuses what the kernel permitted, perhaps by outdated rights. Makes the kernel look again and decide by
   * the new ones. True: the kernel's rights were unknown after a crash, and are now taken to be those found.
   */
  async function isNews(request: Request, ids: readonly number[], needs: number, cause: unknown): Promise<boolean> {
    let [hasNews, isOld] = [false, false];
    for (const id of ids) {
      const before = attributes.kernelRights(id);
      const isTold = attributes.kernelView(id).rights !== undefined;
      if (isSameAs(before, await learn(request, id))) continue;
      notify(invalidateInode(id));
      if (isTold) isOld = true;
      else hasNews = true;
    }
    // An open directory is not looked up again.
    if (isOld && needs !== access.list) throw new Errno('ESTALE', cause);
    return hasNews && !isOld;
  }

  /** True: a node has a new handle. */
  async function isFoundAgain(request: Request, ids: readonly number[]): Promise<boolean> {
    const before = ids.map((id) => node(id).handle);
    for (const id of ids) await findAgain(request, id, 0).catch(() => undefined);
    if (ids.some((id, i) => !isSame(node(id).handle, before[i] as FileHandle))) return true;
    // The kernel will look the names up again: it must not find the same cached entries.
    for (const id of ids) dropPath(id);
    return false;
  }

  async function mended<R>(
    request: Request,
    ids: readonly number[],
    needs: number,
    cause: unknown,
    again: () => Promise<R>,
  ): Promise<R> {
    if (isNfsError(cause, 'ACCES') && (await isNews(request, ids, needs, cause))) return await again();
    if (isStale(cause) && (await isFoundAgain(request, ids))) return await again();
    throw cause;
  }

  function on<R>(
    request: Request,
    id: number,
    call: OnOne<R>,
    needs: number = access.change,
    who: Caller = request,
  ): Promise<R> {
    const once = (): Promise<R> =>
      ask(request, identities.credential(who, needs, attributes.kernelRights(id)), id, call);
    return once().catch((cause: unknown) => mended(request, [id], needs, cause, once));
  }

  function onOpen<R>(request: Request, id: number, fh: number, call: OnOne<R>, needs: number): Promise<R> {
    const once = (about: Rights | undefined): Promise<R> =>
      ask(request, identities.credential(openerOf(fh, request, about), needs, about), id, call);
    const about = attributes.last(id);
    return once(about).catch(async (cause: unknown) => {
      if (!isNfsError(cause, 'ACCES')) return await mended(request, [id], needs, cause, () => once(about));
      const now = await learn(request, id);
      if (isSameAs(about, now)) throw cause;
      return await once(now);
    });
  }

  const asCallerOnly: Server['asCallerOnly'] = (request, call) =>
    calls.ask(request, identities.credential(request, access.none), call);

  return {
    node,
    on,
    onOpen,
    asCallerOnly,
    onTwo: (request, one, other, call, isChecked = true) => {
      const first = () => (isChecked ? attributes.kernelRights(one) : undefined);
      const credential = () => identities.credential(request, access.change, first(), attributes.kernelRights(other));
      const once = () =>
        calls.ask(request, credential(), (options) => call(node(one).handle, node(other).handle, options));
      return once().catch((cause: unknown) => mended(request, [one, other], access.change, cause, once));
    },
    look: async (request, id) => {
      const since = attributes.now();
      const found = await getattr(request, id).catch((cause: unknown) =>
        mended(request, [id], access.none, cause, () => getattr(request, id)),
      );
      return attributes.update(id, found, since);
    },
    seen: (id, parent, key) => {
      places.delete(id);
      places.set(id, { parent, key });
    },
    isDirectory: (id) => {
      directories.add(id);
    },
    oldest: (most) =>
      places
        .entries()
        .take(most)
        .map(([id, seen]) => ({ id, ...seen, isDirectory: directories.has(id) }))
        .toArray(),
    forget: (id) => {
      places.delete(id);
      directories.delete(id);
    },
  };
}

const isSameAs = (before: Rights | undefined, now: Rights): boolean =>
  before !== undefined && areSameRights(before, now);

export const isSame = (a: FileHandle, b: FileHandle): boolean =>
  a.length === b.length && a.every((byte, i) => byte === b[i]);
