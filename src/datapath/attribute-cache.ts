import type { Clock } from '#base/clock.ts';
import type { AttrReply } from '#wire/fuse/operations.ts';
import type { Attributes, Wcc } from '#wire/nfs3/structures.ts';
import { attrOf } from './attr.ts';
import { createAttributeTtl } from './attribute-ttl.ts';
import type { CacheLimit } from './cache-limit.ts';
import { areSameRights, createRightsReducer, type Rights } from './identity.ts';
import { createKernelRights } from './kernel-rights.ts';
import { followChain, isNewer, isSameContent, isUnchanged, latestSize, maxSize, type WccChain } from './wcc-chain.ts';

/**
 * Attributes of each node, updated by every reply that carries attributes. Replies may overtake each other: a reply to
 * a request sent before one of this client's changes finished does not override the result of that change.
 */
export interface AttributeCache extends Disposable {
  /** Read this before a call and pass it to `update` with the call's result. */
  eventNumber(): number;
  /** The last attributes seen, however old. */
  lastSeen(id: number): Attributes | undefined;
  /** The size in the newest reply, even while our own changes are in flight. */
  size(id: number): number | undefined;
  /** Remaining ms that the attributes are fresh. */
  freshMs(id: number): number;
  /** Infinity: the attributes are known to be wrong. */
  ageMs(id: number): number;
  /**
   * How long new attributes of the node, or names in it, may be cached; longer if the node has not changed for long.
   */
  ttlOf(id: number): number;
  /**
   * Records attributes from a reply. `at`: when it arrived, if not now. Returns the best known attributes, which differ
   * from the reply's if a change of our own came in between.
   */
  update(id: number, attributes: Attributes, eventNumber: number, at?: number): Attributes;
  /** Starts a change by this client. Call `finish` with the attributes in the reply, however the change ends. */
  beginChange(id: number): OwnChange;
  /** A call of this client changed the node's link count or ctime, and its reply had no attributes. */
  expire(id: number): void;
  /** Changes whenever another client changed the node: its cached content is then invalid. */
  epoch(id: number): number;
  /** Builds the reply to the kernel and records what the kernel knows from it. */
  attrReply(id: number): AttrReply;
  /**
   * The size and rights that the kernel has cached; undefined if a predecessor sent them. `isCurrent`: the kernel knows
   * of all changes by other clients.
   */
  kernelView(id: number): {
    readonly size: number | undefined;
    readonly rights: Rights | undefined;
    readonly isCurrent: boolean;
  };
  /** The rights by which the kernel permits access; if unknown, those last seen. */
  kernelRights(id: number): Rights | undefined;
  /** Records that the kernel knows, from its own write, that the file has at least this size. */
  recordKernelSize(id: number, size: number): void;
  /** Sets whether one of its links is a hidden name, which is not shown. */
  setHidden(id: number, isHidden: boolean): void;
  forget(id: number): void;
}

export interface OwnChange {
  finish(wcc: Wcc | undefined): void;
}

interface CachedAttributes extends WccChain {
  attributes: Attributes | undefined;
  /** Time when the attributes arrived. -Infinity: they may be wrong. */
  arrivedAt: number;
  /** How long the attributes are fresh after `arrivedAt`. */
  ttlMs: number;
  /** Event number of the last update. */
  lastEvent: number;
  epoch: number;
  /** Number of this client's changes in flight. */
  changesInFlight: number;
  isChainBroken: boolean;
  isMetadataChanged: boolean;
  /** This client has changed the node. */
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
  /** End of the unanswered writes of a file: its minimum size. Undefined: the server has answered all writes. */
  readonly unansweredEnd?: (id: number) => number | undefined;
}

const untrustedTime = Number.NEGATIVE_INFINITY;
/** Fraction of the cache to drop when the limit is exceeded. */
const dropRatio = 0.1;
/** Up to this many overlapping changes are put in order by their before and after attributes. */
const maxOverlappingChanges = 64;

export function createAttributeCache({
  clock,
  ttlMs,
  isHidden,
  limit,
  group,
  unansweredEnd = () => undefined,
}: AttributeCacheOptions): AttributeCache {
  const nodes = new Map<number, CachedAttributes>();
  /** Rights of nodes that were dropped from the cache. */
  const droppedRights = createKernelRights();
  const share = limit.register(dropOldest);
  let eventCount = 0;
  /** Never reused, so that a node dropped from the cache gets a new epoch when it returns. */
  let lastEpoch = 0;
  /** For dropped nodes: event number of the last own change to any of them. */
  let lastDroppedChange = 0;
  const ttlFor = createAttributeTtl(clock, ttlMs);
  const rightsOf = createRightsReducer();

  function getOrCreate(id: number): CachedAttributes {
    const found = nodes.get(id);
    if (found !== undefined) return found;
    const made: CachedAttributes = {
      attributes: undefined,
      arrivedAt: untrustedTime,
      ttlMs: 0,
      lastEvent: 0,
      epoch: ++lastEpoch,
      changesInFlight: 0,
      chainEnd: undefined,
      unchained: [],
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
    const targetSize = nodes.size * (1 - dropRatio);
    for (const [id, known] of nodes) {
      if (nodes.size <= targetSize) return;
      if (known.changesInFlight > 0) continue;
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
    if (known.isChangedHere) lastDroppedChange = Math.max(lastDroppedChange, known.lastEvent);
    nodes.delete(id);
    share.add(-1);
  }

  function recordAttributes(known: CachedAttributes, attributes: Attributes, at: number): Attributes {
    known.attributes = attributes;
    known.arrivedAt = at;
    known.ttlMs = ttlFor(attributes);
    known.lastEvent = ++eventCount;
    return attributes;
  }

  function freshMs(id: number): number {
    const known = nodes.get(id);
    if (known === undefined || known.changesInFlight > 0) return 0;
    return Math.max(0, known.arrivedAt + known.ttlMs - clock.elapsed());
  }

  function update(id: number, attributes: Attributes, eventNumber: number, at = clock.elapsed()): Attributes {
    const known = getOrCreate(id);
    const before = known.attributes;
    if (before === undefined) {
      // The attributes may come from a listing made before a change of a node that was dropped since.
      const isSure = known.changesInFlight === 0 && eventNumber >= lastDroppedChange;
      return recordAttributes(known, attributes, isSure ? at : untrustedTime);
    }
    if (known.changesInFlight > 0 || eventNumber < known.lastEvent) {
      if (!isNewer(attributes, before)) return before;
      // Use the new rights at once, even if the other attributes are not used.
      if (!areSameRights(before, attributes)) known.attributes = { ...before, ...rightsOf(attributes) };
      return attributes;
    }
    if (!isUnchanged(before, attributes)) {
      if (!known.isMetadataChanged || !isSameContent(before, attributes)) known.epoch = ++lastEpoch;
      known.isMetadataChanged = false;
      return recordAttributes(known, attributes, at);
    }
    // atime may differ.
    known.attributes = attributes;
    known.arrivedAt = at;
    known.ttlMs = ttlFor(attributes);
    return attributes;
  }

  /** Combines the attributes that this client's changes returned. None of them is in flight any more. */
  function combineChanges(known: CachedAttributes): void {
    const isChain = known.unchained.length === 0 && !known.isChainBroken;
    const afters = [known.chainEnd, ...known.unchained.map(({ after }) => after)].filter((one) => one !== undefined);
    if (afters.length === 0) {
      known.isOrderUnknown = false;
      return;
    }
    if (!isChain) known.epoch = ++lastEpoch;
    const last = afters.reduce((a, b) => (isNewer(b, a) ? b : a));
    const isSure = isChain && !known.isOrderUnknown;
    recordAttributes(known, isChain ? (known.chainEnd ?? last) : last, isSure ? clock.elapsed() : untrustedTime);
    known.unchained.length = 0;
    known.chainEnd = undefined;
    known.isChainBroken = false;
    known.isOrderUnknown = false;
  }

  function beginChange(id: number): OwnChange {
    const known = getOrCreate(id);
    known.changesInFlight++;
    known.isChangedHere = true;
    return {
      finish: (wcc) => {
        known.changesInFlight--;
        known.lastEvent = ++eventCount;
        // The effect is unknown. The next attributes seen will look like another client's change.
        if (wcc?.after === undefined) {
          known.arrivedAt = untrustedTime;
          known.isOrderUnknown = true;
        } else if (known.unchained.length < maxOverlappingChanges) known.unchained.push(wcc);
        else known.isChainBroken = true;
        followChain(known);
        if (known.changesInFlight === 0) combineChanges(known);
      },
    };
  }

  return {
    update,
    beginChange,
    freshMs,
    forget,
    eventNumber: () => eventCount,
    ttlOf: (id) => {
      const known = nodes.get(id);
      return known === undefined || known.changesInFlight > 0 ? ttlMs : Math.max(ttlMs, known.ttlMs);
    },
    lastSeen: (id) => nodes.get(id)?.attributes,
    size: (id) => {
      const known = nodes.get(id);
      return known && latestSize(known);
    },
    ageMs: (id) => {
      const known = nodes.get(id);
      return known === undefined || known.changesInFlight > 0
        ? Number.POSITIVE_INFINITY
        : clock.elapsed() - known.arrivedAt;
    },
    expire: (id) => {
      const known = nodes.get(id);
      if (known === undefined) return;
      known.arrivedAt = untrustedTime;
      known.lastEvent = ++eventCount;
      known.isMetadataChanged = true;
    },
    epoch: (id) => getOrCreate(id).epoch,
    attrReply: (id) => {
      const known = getOrCreate(id);
      if (known.attributes === undefined) throw new Error(`no attributes are known for node ${id}`);
      const writtenEnd = unansweredEnd(id);
      const size = writtenEnd === undefined ? (latestSize(known) ?? 0) : Math.max(writtenEnd, maxSize(known));
      known.kernelSize = size;
      known.kernelRights = rightsOf(known.attributes);
      known.kernelEpoch = known.epoch;
      // mtime is known only when the server has answered.
      const attr = attrOf(known.attributes, size, known.isHidden, group);
      return { attr, attrMs: writtenEnd === undefined ? freshMs(id) : 0 };
    },
    kernelView: (id) => {
      const { kernelSize: size, kernelRights: rights, kernelEpoch, epoch } = getOrCreate(id);
      return { size, rights, isCurrent: kernelEpoch === epoch };
    },
    kernelRights: (id) => {
      const known = nodes.get(id);
      return known === undefined ? droppedRights.get(id) : (known.kernelRights ?? known.attributes);
    },
    recordKernelSize: (id, size) => {
      const known = getOrCreate(id);
      if (known.kernelSize !== undefined && known.kernelSize < size) known.kernelSize = size;
    },
    setHidden: (id, isHiddenNow) => {
      getOrCreate(id).isHidden = isHiddenNow;
    },
    [Symbol.dispose]: () => share[Symbol.dispose](),
  };
}

/** Runs a call that changes a node and records the server's before and after attributes, however the call ends. */
export async function recordChange<R>(
  attributes: Pick<AttributeCache, 'beginChange'>,
  id: number,
  call: () => Promise<R>,
  wccOf: (result: R) => Wcc | undefined,
): Promise<R> {
  const change = attributes.beginChange(id);
  let wcc: Wcc | undefined;
  try {
    const result = await call();
    wcc = wccOf(result);
    return result;
  } finally {
    change.finish(wcc);
  }
}
