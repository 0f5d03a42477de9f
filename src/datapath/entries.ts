import type { Entry, Request } from '#wire/fuse/operations.ts';
import { fileType, maxNameBytes } from '#wire/nfs3/structures.ts';
import { typeByBits } from './attr.ts';
import { createEntryTtl } from './entry-ttl.ts';
import { createFindName, type ResolvedName } from './find-name.ts';
import type { MountContext } from './mount-context.ts';
import { type CachedName, keyOf } from './name-cache.ts';
import type { Node, Nodes } from './ports.ts';
import { createReaddirAhead } from './readdir-ahead.ts';

/** Directory entries as the kernel knows them. */
export interface Entries {
  /** Returns synchronously if the answer is cached. */
  lookup(parent: number, name: Buffer, request: Request): Entry | Promise<Entry>;
  /** Looks the name up on the server. Undefined: absent. */
  find(parent: number, name: Buffer, request: Request): Promise<ResolvedName | undefined>;
  /** Like `find`, but prefers the last reply to the kernel, since the kernel based its request on it. */
  resolveAsKernelKnows(parent: number, name: Buffer, request: Request): Promise<ResolvedName | undefined>;
  /** Builds the kernel's entry and counts one lookup. */
  entry(parent: number, key: string, resolved: ResolvedName, request: Request): Entry | Promise<Entry>;
  /** The entry of a READDIRPLUS, with attributes. */
  listedEntry(parent: number, key: string, name: CachedName, place: number): Entry | undefined;
  /** Undoes a counted lookup: the request at that place does not report the entry to the kernel. */
  undoLookup(id: number, place: number): void;
  forget(id: number, lookups: number): void;
}

/** How long a listing's attributes are used: later the file may have been changed here. */
const maxListedAgeMs = 1_000;

/** How an entry is counted and how long the kernel may cache it. */
interface KernelEntry {
  /** The request's place in the journal. */
  readonly place: number;
  readonly addLookup: Nodes['addListed'];
  readonly entryMs: number;
}

const negativeEntry = (entryMs: number): Entry => ({ node: 0, generation: 0, attr: undefined, entryMs, attrMs: 0 });

export function createEntries(context: MountContext): Entries {
  const { nodes, server, attributes, names, clock, sequence, ttlMs } = context;
  const readdirAhead = createReaddirAhead(context);
  const { remainingMs, cachedMs } = createEntryTtl(context);
  const find = createFindName(context);

  /** Records where the kernel will see the node. */
  function recordSeen(parent: number, key: string, node: Node): Node {
    server.recordSeen(node.id, parent, key);
    return node;
  }

  function entryOf({ id, generation }: Node, entryMs: number): Entry {
    const { attr, attrMs } = attributes.attrReply(id);
    if (typeByBits(attr.mode) === fileType.directory) server.markDirectory(id);
    return { node: id, generation, attr, entryMs, attrMs };
  }

  function forgetIfGone(id: number): void {
    if (nodes.get(id) !== undefined) return;
    attributes.forget(id);
    names.forget(id);
    server.forget(id);
    readdirAhead.forget(id);
  }

  function undoLookup(id: number, place: number): void {
    nodes.removeLookup(id, place);
    forgetIfGone(id);
  }

  /** Undefined: not fully cached. */
  function cachedEntry(parent: number, key: string, name: CachedName, kernelEntry: KernelEntry): Entry | undefined {
    const handle = name.target?.handle;
    if (handle === undefined) return undefined;
    const { place, addLookup: count, entryMs } = kernelEntry;
    const node = recordSeen(parent, key, count(handle, place));
    // The attribute cache may have newer attributes than the listing.
    if (attributes.freshMs(node.id) > 0) return entryOf(node, entryMs);
    const listedAttributes =
      clock.elapsed() - name.at <= Math.max(ttlMs, maxListedAgeMs) ? name.target?.attributes : undefined;
    if (listedAttributes !== undefined) {
      attributes.update(node.id, listedAttributes, name.eventNumber, name.at);
      return entryOf(node, entryMs);
    }
    undoLookup(node.id, place);
    return undefined;
  }

  async function entryFromServer(parent: number, node: Node, request: Request): Promise<Entry> {
    try {
      await server.getattr(request, node.id);
      return entryOf(node, attributes.ttlOf(parent));
    } catch (cause) {
      undoLookup(node.id, request.slot);
      throw cause;
    }
  }

  function entry(parent: number, key: string, resolved: ResolvedName, request: Request): Entry | Promise<Entry> {
    const node = recordSeen(parent, key, nodes.addLookup(resolved.handle, request.slot));
    if (resolved.attributes === undefined) return entryFromServer(parent, node, request);
    attributes.update(node.id, resolved.attributes, resolved.eventNumber);
    sequence.recordLookup(node.id, request);
    return entryOf(node, attributes.ttlOf(parent));
  }

  return {
    find,
    entry,
    undoLookup,
    forget: (id, lookups) => {
      nodes.forget(id, lookups);
      forgetIfGone(id);
    },
    lookup: (parent, name, request) => {
      const key = keyOf(name);
      const cached = names.get(parent, key);
      const entryMs = cached === undefined ? 0 : cachedMs(parent, cached);
      if (cached !== undefined && entryMs > 0) {
        if (cached.target === undefined) return negativeEntry(entryMs);
        const entry = cachedEntry(parent, key, cached, { place: request.slot, addLookup: nodes.addLookup, entryMs });
        if (entry !== undefined) {
          readdirAhead.recordHit(parent);
          return entry;
        }
      }
      // This client's changes keep the directory's attributes fresh.
      const isKnown = cached?.target === undefined && name.length <= maxNameBytes && names.isComplete(parent);
      const directoryMs = isKnown ? ttlMs - attributes.ageMs(parent) : 0;
      if (directoryMs > 0) return negativeEntry(directoryMs);
      readdirAhead.recordMiss(parent, request);
      return find(parent, name, request).then((resolved) =>
        resolved === undefined ? negativeEntry(ttlMs) : entry(parent, key, resolved, request),
      );
    },
    resolveAsKernelKnows: async (parent, name, request) => {
      const cached = names.get(parent, keyOf(name));
      if (cached === undefined) return await find(parent, name, request);
      const handle = cached.target?.handle;
      if (handle !== undefined) return { handle, attributes: undefined, eventNumber: cached.eventNumber };
      return cached.target === undefined && cachedMs(parent, cached) > 0
        ? undefined
        : await find(parent, name, request);
    },
    // Without room for a node, the kernel gets the name only.
    listedEntry: (parent, key, name, place) =>
      nodes.hasRoom()
        ? cachedEntry(parent, key, name, { place, addLookup: nodes.addListed, entryMs: remainingMs(parent, name) })
        : undefined,
  };
}
