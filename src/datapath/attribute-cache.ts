import type { Clock } from '#base/clock.ts';
import type { AttrReply } from '#wire/fuse/operations.ts';
import type { Attributes, Wcc } from '#wire/nfs3/structures.ts';
import { attrOf } from './attr.ts';
import { createAttributeTtl } from './attribute-ttl.ts';
import type { CacheLimit } from './cache-limit.ts';
import { areSameRights, createRightsOf, type Rights } from './identity.ts';
import { createKernelRights } from './kernel-rights.ts';
import { followChain, isNewer, isSameContent, isUnchanged, latestSize, sizeOf, type WccChain } from './wcc-chain.ts';

/**
 * Attributes of each node, updated by every reply that carries some. Replies may overtake each other: a reply requested
 * before one of our own changes ended is not believed against that change.
 */
export interface AttributeCache extends Disposable {
  /** Take this before a call and pass it as `since` with the call's result. */
  now(): number;
  /** The last attributes seen, however old. */
  last(id: number): Attributes | undefined;
  /** The size in the newest reply, even while our own changes are in flight. */
  size(id: number): number | undefined;
  /** Remaining ms that the attributes are fresh. */
  freshMs(id: number): number;
  /** Infinity: the attributes are known to be wrong. */
  ageMs(id: number): number;
  /** How long new knowledge about the node or names in it may be cached; longer if it has not changed for long. */
  ttlOf(id: number): number;
  /**
   * Records attributes from a reply. `at`: when it arrived, if not now. Returns the best known attributes, which differ
   * from the reply's if a change of our own came in between.
   */
  update(id: number, attributes: Attributes, since: number, at?: number): Attributes;
  /** Starts a change of our own. Its `ended` must be called with what the server said about it. */
  change(id: number): OwnChange;
  /** A call of ours changed its links or ctime without returning new attributes. */
  expire(id: number): void;
  /** Changes whenever another client changed the node: its cached content is then invalid. */
  epoch(id: number): number;
  /** Builds the reply to the kernel and records what the kernel knows from it. */
  attrReply(id: number): AttrReply;
  /**
   * What the kernel has cached; undefined if a predecessor sent it. `isAll`: the kernel knows of all changes by other
   * clients.
   */
  kernelView(id: number): {
    readonly size: number | undefined;
    readonly rights: Rights | undefined;
    readonly isAll: boolean;
  };
  /** The rights by which the kernel permits access; if unknown, those last seen. */
  kernelRights(id: number): Rights | undefined;
  /** The kernel knows by itself (from its own write) that the file is at least this long. */
  grew(id: number, size: number): void;
  /** Sets whether one of its links is a hidden name, which is not shown. */
  setHidden(id: number, isHidden: boolean): void;
  forget(id: number): void;
}

export interface OwnChange {
  ended(wcc: Wcc | undefined): void;
}

interface CachedAttributes extends WccChain {
  attributes: Attributes | undefined;
  /** When they arrived. -Infinity: not to be relied on. */
  at: number;
  /** How long they are fresh from then on. */
  ttlMs: number;
  /** Event number of the last update. */
  order: number;
  epoch: number;
  /** Own changes in flight. */
  changing: number;
  isChainBroken: boolean;
  isMetadataChanged: boolean;
  /** Changed by us. */
  isChangedHere: boolean;
  kernelSize: number | undefined;
  kernelRights: Rights | undefined;
  kernelEpoch: number;
  isHidden: boolean;
}

export interface AttributeCacheOptions {
  readonly clock: Clock;
  /** Minimum time that attributes are cached. 0: not at all. */
  readonly ttlMs: number;
  /** Whether a new node has a hidden name. */
  readonly isHidden: (id: number) => boolean;
  readonly limit: CacheLimit;
  /** The group shown for every object. Default: its own. */
  readonly group?: number | undefined;
  /** The minimum size of a file by writes that the server has not answered. Undefined: it has answered all. */
  readonly end?: (id: number) => number | undefined;
}

const never = Number.NEGATIVE_INFINITY;
/** The part of the cache that is dropped at once to make room. */
const droppedPart = 0.1;
/** Overlapping changes are ordered by their before and after attributes; more than this many are not. */
const maxOverlapping = 64;

export function createAttributeCache({
  clock,
  ttlMs,
  isHidden,
  limit,
  group,
  end = () => undefined,
}: AttributeCacheOptions): AttributeCache {
  const nodes = new Map<number, CachedAttributes>();
  /** Rights of nodes that were dropped from the cache. */
  const droppedRights = createKernelRights();
  const share = limit.join(dropOldest);
  let order = 0;
  /** Unique per state of a node, also across dropping it from the cache. */
  let epochs = 0;
  /** For dropped nodes: event number of the last own change to any of them. */
  let changedBefore = 0;
  const ttlFor = createAttributeTtl(clock, ttlMs);
  const rightsOf = createRightsOf();

  function of(id: number): CachedAttributes {
    const found = nodes.get(id);
    if (found !== undefined) return found;
    const made: CachedAttributes = {
      attributes: undefined,
      at: never,
      ttlMs: 0,
      order: 0,
      epoch: ++epochs,
      changing: 0,
      reached: undefined,
      ended: [],
      isChainBroken: false,
      isOrderUnknown: false,
      isMetadataChanged: false,
      isChangedHere: false,
      kernelSize: undefined,
      kernelRights: droppedRights.get(id),
      kernelEpoch: -1,
      isHidden: isHidden(id),
    };
    nodes.set(id, made);
    droppedRights.forget(id);
    share.add(1);
    return made;
  }

  function dropOldest(): void {
    const enough = nodes.size * (1 - droppedPart);
    for (const [id, known] of nodes) {
      if (nodes.size <= enough) return;
      if (known.changing > 0) continue;
      drop(id, known);
      if (known.kernelRights !== undefined) droppedRights.keep(id, known.kernelRights);
    }
  }

  function forget(id: number): void {
    const known = nodes.get(id);
    if (known === undefined) droppedRights.forget(id);
    else drop(id, known);
  }

  function drop(id: number, known: CachedAttributes): void {
    if (known.isChangedHere) changedBefore = Math.max(changedBefore, known.order);
    nodes.delete(id);
    share.add(-1);
  }

  function learn(known: CachedAttributes, attributes: Attributes, at: number): Attributes {
    known.attributes = attributes;
    known.at = at;
    known.ttlMs = ttlFor(attributes);
    known.order = ++order;
    return attributes;
  }

  function freshMs(id: number): number {
    const known = nodes.get(id);
    if (known === undefined || known.changing > 0) return 0;
    return Math.max(0, known.at + known.ttlMs - clock.elapsed());
  }

  function update(id: number, attributes: Attributes, since: number, at = clock.elapsed()): Attributes {
    const known = of(id);
    const before = known.attributes;
    if (before === undefined) {
      // May come from a listing made before a change that is no longer remembered.
      const isSure = known.changing === 0 && since >= changedBefore;
      return learn(known, attributes, isSure ? at : never);
    }
    if (known.changing > 0 || since < known.order) {
      if (!isNewer(attributes, before)) return before;
      // The new rights count from now on, whatever becomes of the rest.
      if (!areSameRights(before, attributes)) known.attributes = { ...before, ...rightsOf(attributes) };
      return attributes;
    }
    if (!isUnchanged(before, attributes)) {
      if (!known.isMetadataChanged || !isSameContent(before, attributes)) known.epoch = ++epochs;
      known.isMetadataChanged = false;
      return learn(known, attributes, at);
    }
    // atime may differ.
    known.attributes = attributes;
    known.at = at;
    known.ttlMs = ttlFor(attributes);
    return attributes;
  }

  /** No own change is in flight: combine what they reported. */
  function settle(known: CachedAttributes): void {
    const isChain = known.ended.length === 0 && !known.isChainBroken;
    const afters = [known.reached, ...known.ended.map(({ after }) => after)].filter((one) => one !== undefined);
    if (afters.length === 0) {
      known.isOrderUnknown = false;
      return;
    }
    if (!isChain) known.epoch = ++epochs;
    const last = afters.reduce((a, b) => (isNewer(b, a) ? b : a));
    const isSure = isChain && !known.isOrderUnknown;
    learn(known, isChain ? (known.reached ?? last) : last, isSure ? clock.elapsed() : never);
    known.ended.length = 0;
    known.reached = undefined;
    known.isChainBroken = false;
    known.isOrderUnknown = false;
  }

  function change(id: number): OwnChange {
    const known = of(id);
    known.changing++;
    known.isChangedHere = true;
    return {
      ended: (wcc) => {
        known.changing--;
        known.order = ++order;
        // The effect is unknown. The next attributes seen will look like another client's change.
        if (wcc?.after === undefined) {
          known.at = never;
          known.isOrderUnknown = true;
        } else if (known.ended.length < maxOverlapping) known.ended.push(wcc);
        else known.isChainBroken = true;
        followChain(known);
        if (known.changing === 0) settle(known);
      },
    };
  }

  return {
    update,
    change,
    freshMs,
    forget,
    now: () => order,
    ttlOf: (id) => {
      const known = nodes.get(id);
      return known === undefined || known.changing > 0 ? ttlMs : Math.max(ttlMs, known.ttlMs);
    },
    last: (id) => nodes.get(id)?.attributes,
    size: (id) => {
      const known = nodes.get(id);
      return known && latestSize(known);
    },
    ageMs: (id) => {
      const known = nodes.get(id);
      return known === undefined || known.changing > 0 ? Number.POSITIVE_INFINITY : clock.elapsed() - known.at;
    },
    expire: (id) => {
      const known = nodes.get(id);
      if (known === undefined) return;
      known.at = never;
      known.order = ++order;
      known.isMetadataChanged = true;
    },
    epoch: (id) => of(id).epoch,
    attrReply: (id) => {
      const known = of(id);
      if (known.attributes === undefined) throw new Error(`no attributes are known for node ${id}`);
      const ahead = end(id);
      const size = ahead === undefined ? (latestSize(known) ?? 0) : Math.max(ahead, sizeOf(known));
      known.kernelSize = size;
      known.kernelRights = rightsOf(known.attributes);
      known.kernelEpoch = known.epoch;
      // mtime is known only when the server has answered.
      const attr = attrOf(known.attributes, size, known.isHidden, group);
      return { attr, attrMs: ahead === undefined ? freshMs(id) : 0 };
    },
    kernelView: (id) => {
      const { kernelSize: size, kernelRights: rights, kernelEpoch, epoch } = of(id);
      return { size, rights, isAll: kernelEpoch === epoch };
    },
    kernelRights: (id) => {
      const known = nodes.get(id);
      return known === undefined ? droppedRights.get(id) : (known.kernelRights ?? known.attributes);
    },
    grew: (id, size) => {
      const known = of(id);
      if (known.kernelSize !== undefined && known.kernelSize < size) known.kernelSize = size;
    },
    setHidden: (id, isHiddenNow) => {
      of(id).isHidden = isHiddenNow;
    },
    [Symbol.dispose]: () => share[Symbol.dispose](),
  };
}

/** Runs a call that changes a node and records the server's before and after attributes, however the call ends. */
export async function recordChange<R>(
  attributes: Pick<AttributeCache, 'change'>,
  id: number,
  call: () => Promise<R>,
  wccOf: (result: R) => Wcc | undefined,
): Promise<R> {
  const change = attributes.change(id);
  let wcc: Wcc | undefined;
  try {
    const result = await call();
    wcc = wccOf(result);
    return result;
  } finally {
    change.ended(wcc);
  }
}
