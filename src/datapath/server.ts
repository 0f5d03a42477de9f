import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import type { AttributeCache } from './attributes.ts';
import type { Calls } from './calls.ts';
import { isStale } from './errors.ts';
import { isUnchanged } from './following.ts';
import type { Identities, Who } from './identity.ts';
import type { NameCache } from './name-cache.ts';
import type { Node, Nodes } from './ports.ts';

type OnOne<R> = (handle: FileHandle, options: CallOptions) => Promise<R>;
type OnTwo<R> = (one: FileHandle, other: FileHandle, options: CallOptions) => Promise<R>;

/** The NFS server as one mount sees it: calls about nodes, on behalf of whoever asks. */
export interface Server {
  node(id: number): Node;
  on<R>(request: Request, id: number, call: OnOne<R>, who?: Who): Promise<R>;
  onTwo<R>(request: Request, one: number, other: number, call: OnTwo<R>): Promise<R>;
  /** About something that the kernel does not know: as the caller alone, without anybody's group. */
  apart<R>(request: Request, call: (options: CallOptions) => Promise<R>): Promise<R>;
  /** Asks for the attributes of a node. */
  look(request: Request, id: number, who?: Who): Promise<Attributes>;
  /** Where a node was seen last; the name with one character for each byte. */
  seen(id: number, parent: number, key: string): void;
  isDirectory(id: number): void;
  /** At most so many, those seen longest ago first. */
  oldest(most: number): readonly Placed[];
  forget(id: number): void;
}

export interface ServerParts {
  readonly nfs: NfsClient;
  readonly nodes: Nodes;
  readonly attributes: AttributeCache;
  readonly names: Pick<NameCache, 'drop'>;
  readonly identities: Identities;
  readonly calls: Calls;
}

interface Seen {
  readonly parent: number;
  readonly key: string;
}

/** A node and where it was seen last. */
export interface Placed extends Seen {
  readonly id: number;
  readonly isDirectory: boolean;
}

/** No path that the kernel takes is deeper. */
const deepest = 2048;

export function createServer({ nfs, nodes, attributes, names, identities, calls }: ServerParts): Server {
  /** Those seen last are last. */
  const places = new Map<number, Seen>();
  const directories = new Set<number>();

  function node(id: number): Node {
    const found = nodes.get(id);
    if (found === undefined) throw new Errno('ESTALE');
    return found;
  }

  const askOn = <R>(request: Request, who: Who, id: number, call: OnOne<R>): Promise<R> =>
    calls.ask(request, identities.credential(who, attributes.last(id)), (options) => call(node(id).handle, options));

  /** The server does not know the handle; perhaps it has another for the same file at the same place. */
  async function findAgain(request: Request, id: number, depth: number): Promise<void> {
    const place = places.get(id);
    const known = attributes.last(id);
    if (place === undefined || known === undefined || depth > deepest) return;
    const name = Buffer.from(place.key, 'latin1');
    const lookup = () => askOn(request, request, place.parent, (handle, options) => nfs.lookup(handle, name, options));
    const found = await lookup().catch(async (cause: unknown) => {
      if (!isStale(cause)) throw cause;
      await findAgain(request, place.parent, depth + 1);
      return await lookup();
    });
    const since = attributes.now();
    const now = found.attributes ?? (await askOn(request, request, id, (_, how) => nfs.getattr(found.handle, how)));
    // Numbers of files that are gone are used again, so more than that must be the same.
    if (now.fileId !== known.fileId || now.type !== known.type || !isUnchanged(now, known)) return;
    nodes.changeHandle(id, found.handle);
    attributes.saw(id, now, since);
  }

  /** The directories on the way may be others, too. */
  function dropPath(id: number): void {
    let place = places.get(id);
    for (let depth = 0; place !== undefined && depth < deepest; depth++) {
      names.drop(place.parent, place.key);
      place = places.get(place.parent);
    }
  }

  async function learn(request: Request, id: number): Promise<void> {
    const since = attributes.now();
    attributes.saw(id, await askOn(request, request, id, (handle, options) => nfs.getattr(handle, options)), since);
  }

  /** Does what can be done about a refusal. True: it is worth asking once more. */
  async function mend(request: Request, ids: readonly number[], cause: unknown): Promise<boolean> {
    if (isNfsError(cause, 'ACCES')) {
      // After a crash nothing is known of a node, and so not whose group to send along.
      const unknown = ids.filter((id) => attributes.last(id) === undefined);
      for (const id of unknown) await learn(request, id);
      return unknown.length > 0;
    }
    if (!isStale(cause)) return false;
    const before = ids.map((id) => node(id).handle);
    for (const id of ids) await findAgain(request, id, 0).catch(() => undefined);
    if (ids.some((id, i) => !isSame(node(id).handle, before[i] as FileHandle))) return true;
    // The kernel looks the names up once more when it hears of it: it must not find the same again.
    for (const id of ids) dropPath(id);
    return false;
  }

  async function mended<R>(
    request: Request,
    ids: readonly number[],
    cause: unknown,
    again: () => Promise<R>,
  ): Promise<R> {
    if (await mend(request, ids, cause)) return await again();
    throw cause;
  }

  function on<R>(request: Request, id: number, call: OnOne<R>, who: Who = request): Promise<R> {
    const once = (): Promise<R> => askOn(request, who, id, call);
    return once().catch((cause: unknown) => mended(request, [id], cause, once));
  }

  return {
    ...{ node, on },
    onTwo: (request, one, other, call) => {
      const once = () =>
        calls.ask(request, identities.credential(request, attributes.last(one), attributes.last(other)), (options) =>
          call(node(one).handle, node(other).handle, options),
        );
      return once().catch((cause: unknown) => mended(request, [one, other], cause, once));
    },
    apart: (request, call) => calls.ask(request, identities.credential(request), call),
    look: async (request, id, who) => {
      const since = attributes.now();
      const found = await on(request, id, (handle, options) => nfs.getattr(handle, options), who);
      return attributes.saw(id, found, since);
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

export const isSame = (a: FileHandle, b: FileHandle): boolean =>
  a.length === b.length && a.every((byte, i) => byte === b[i]);
