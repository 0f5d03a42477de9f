import type { Entry, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type Attributes, type FileHandle, fileType, maxName } from '#wire/nfs3/structures.ts';
import { typeByBits } from './attr.ts';
import type { Context } from './context.ts';
import { keyOf, type Name } from './name-cache.ts';
import type { Node, Nodes } from './ports.ts';

/** What a name means, for certain. */
export interface There {
  readonly handle: FileHandle;
  readonly attributes: Attributes | undefined;
  readonly since: number;
}

/** Names as the kernel is told of them. */
export interface Entries {
  /** Answers at once what is known. */
  lookup(parent: number, name: Buffer, request: Request): Entry | Promise<Entry>;
  /** What the name means, asked of the server. Undefined: nothing. */
  find(parent: number, name: Buffer, request: Request): Promise<There | undefined>;
  /** The same, but as the kernel was told last, if that is known: it has based its request on it. */
  meant(parent: number, name: Buffer, request: Request): Promise<There | undefined>;
  /** The kernel is told that the name means this, and counts it. */
  entry(parent: number, key: string, there: There, request: Request): Entry | Promise<Entry>;
  /** One of a listing, with its attributes. */
  listed(parent: number, key: string, name: Name, place: number): Entry | undefined;
  /** The kernel will not be told of it after all, by the request at that place. */
  untold(id: number, place: number): void;
  forget(id: number, lookups: number): void;
}

const nothing = (entryMs: number): Entry => ({ node: 0, generation: 0, attr: undefined, entryMs, attrMs: 0 });

export function createEntries(context: Context): Entries {
  const { nfs, nodes, server, attributes, names, clock, turns, ttlMs } = context;

  const freshMs = ({ at }: Name): number => Math.max(0, at + ttlMs - clock.elapsed());

  /** The kernel is about to be told of it. */
  function counted(parent: number, key: string, node: Node): Node {
    server.seen(node.id, parent, key);
    return node;
  }

  function told({ id, generation }: Node, entryMs: number): Entry {
    const { attr, attrMs } = attributes.tell(id);
    if (typeByBits(attr.mode) === fileType.directory) server.isDirectory(id);
    return { node: id, generation, attr, entryMs, attrMs };
  }

  function forgetIfGone(id: number): void {
    if (nodes.get(id) !== undefined) return;
    attributes.forget(id);
    names.forget(id);
    server.forget(id);
  }

  function untold(id: number, place: number): void {
    nodes.unlooked(id, place);
    forgetIfGone(id);
  }

  /** Undefined: not all of it is known. */
  function known(parent: number, key: string, name: Name, place: number, count: Nodes['listed']): Entry | undefined {
    const handle = name.meant?.handle;
    if (handle === undefined) return undefined;
    const entryMs = freshMs(name);
    const node = counted(parent, key, count(handle, place));
    // It may be known better than from a listing.
    if (attributes.freshMs(node.id) > 0) return told(node, entryMs);
    const seen = name.meant?.attributes;
    if (seen === undefined) {
      untold(node.id, place);
      return undefined;
    }
    attributes.saw(node.id, seen, name.since, name.at);
    return told(node, entryMs);
  }

  async function find(parent: number, name: Buffer, request: Request): Promise<There | undefined> {
    const key = keyOf(name);
    const since = attributes.now();
    const changes = names.changes(parent);
    try {
      const found = await server.on(request, parent, (handle, options) => nfs.lookup(handle, name, options));
      if (found.directory !== undefined) attributes.saw(parent, found.directory, since);
      names.put(parent, key, { meant: found, at: clock.elapsed(), since }, changes);
      return { handle: found.handle, attributes: found.attributes, since };
    } catch (cause) {
      if (!isNfsError(cause, 'NOENT')) throw cause;
      names.put(parent, key, { meant: undefined, at: clock.elapsed(), since }, changes);
      return undefined;
    }
  }

  async function asked(node: Node, request: Request): Promise<Entry> {
    try {
      await server.look(request, node.id);
      return told(node, ttlMs);
    } catch (cause) {
      untold(node.id, request.place);
      throw cause;
    }
  }

  function entry(parent: number, key: string, there: There, request: Request): Entry | Promise<Entry> {
    const node = counted(parent, key, nodes.looked(there.handle, request.place));
    if (there.attributes === undefined) return asked(node, request);
    attributes.saw(node.id, there.attributes, there.since);
    turns.looked = node.id;
    turns.lookedAt = turns.now;
    return told(node, ttlMs);
  }

  return {
    ...{ find, entry, untold },
    forget: (id, lookups) => {
      nodes.forget(id, lookups);
      forgetIfGone(id);
    },
    lookup: (parent, name, request) => {
      const key = keyOf(name);
      const cached = names.get(parent, key);
      const entryMs = cached === undefined ? 0 : freshMs(cached);
      if (cached !== undefined && entryMs > 0) {
        if (cached.meant === undefined) return nothing(entryMs);
        const entry = known(parent, key, cached, request.place, nodes.looked);
        if (entry !== undefined) return entry;
      }
      // Our own changes keep the directory's attributes fresh.
      const isKnown = cached?.meant === undefined && name.length <= maxName && names.isComplete(parent);
      const directoryMs = isKnown ? attributes.freshMs(parent) : 0;
      if (directoryMs > 0) return nothing(directoryMs);
      return find(parent, name, request).then((there) =>
        there === undefined ? nothing(ttlMs) : entry(parent, key, there, request),
      );
    },
    meant: async (parent, name, request) => {
      const cached = names.get(parent, keyOf(name));
      if (cached === undefined) return await find(parent, name, request);
      const handle = cached.meant?.handle;
      if (handle !== undefined) return { handle, attributes: undefined, since: cached.since };
      return cached.meant === undefined && freshMs(cached) > 0 ? undefined : await find(parent, name, request);
    },
    // Without room for it the kernel is told the name alone.
    listed: (parent, key, name, place) => (nodes.hasRoom() ? known(parent, key, name, place, nodes.listed) : undefined),
  };
}
