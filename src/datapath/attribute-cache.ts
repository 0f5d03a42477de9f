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
 * What is known of the attributes of each node, from every reply that brings some. Replies may overtake each other: what
 * was asked before a change of our own had ended is not believed against what that change brought.
 */
export interface AttributeCache extends Disposable {
  /** To be taken before a call, and given with what it brings. */
  now(): number;
  /** The last that were seen, however old. */
  last(id: number): Attributes | undefined;
  /** The size in the newest reply, even while our own changes are in flight. */
  size(id: number): number | undefined;
  /** For how many ms they can still be relied on. */
  freshMs(id: number): number;
  /** Infinity: they cannot be right. */
  ageMs(id: number): number;
  /** How long what is learned now, of the node or of names in it, may be relied on: the longer it has not changed, the longer. */
  relyMs(id: number): number;
  /**
   * A reply brought these. `at`: when it came, if not just now. Gives the best that is known: where a change of our own came
   * in between, that is not always what came.
   */
  update(id: number, attributes: Attributes, since: number, at?: number): Attributes;
  /** A change of our own begins. Its end must be told, with what the server said about it. */
  change(id: number): Change;
  /** Our own call has changed its links, or the time of its last change, and did not tell how. */
  expire(id: number): void;
  /** Becomes another each time somebody else has changed the node: what was cached of its content is of no use. */
  epoch(id: number): number;
  /** The kernel is told what is known. */
  attrReply(id: number): AttrReply;
  /** What the kernel has of it, undefined where a predecessor told it; and whether it knows of all changes by others. */
  kernelView(id: number): {
    readonly size: number | undefined;
    readonly rights: Rights | undefined;
    readonly isAll: boolean;
  };
  /** What the kernel goes by when it allows something; the last that was seen, if that is not known. */
  kernelRights(id: number): Rights | undefined;
  /** The kernel knows by itself that the file is now at least that long. */
  grew(id: number, size: number): void;
  /** It has a name that is not shown, and which the server counts. */
  setHidden(id: number, isHidden: boolean): void;
  forget(id: number): void;
}

export interface Change {
  ended(wcc: Wcc | undefined): void;
}

interface Known extends WccChain {
  attributes: Attributes | undefined;
  /** When they came. -Infinity: not to be relied on. */
  at: number;
  /** For how long from then on. */
  relyMs: number;
  /** When, in the order of events, anything was learned last. */
  order: number;
  epoch: number;
  /** Changes of our own that are under way. */
  changing: number;
  isTorn: boolean;
  isTouched: boolean;
  /** By ourselves. */
  isChanged: boolean;
  toldSize: number | undefined;
  toldRights: Rights | undefined;
  toldEpoch: number;
  isHidden: boolean;
}

export interface AttributeCacheOptions {
  readonly clock: Clock;
  /** How long they are relied on at least. 0: not at all. */
  readonly ttlMs: number;
  /** Whether a node that is met for the first time has a name that is hidden. */
  readonly isHidden: (id: number) => boolean;
  readonly limit: CacheLimit;
  /** The group that the kernel is told of everything. Left out: the one that it has. */
  readonly group?: number | undefined;
  /** Where a file ends at least, by what the server has not been told yet. Undefined: it was told everything. */
  readonly end?: (id: number) => number | undefined;
}

const never = Number.NEGATIVE_INFINITY;
/** Of what there is, so much goes at once when room is made. */
const droppedPart = 0.1;
/** Changes that overlap are put in order by what they say about before and after; of more than these nobody can. */
const mostOverlapping = 64;

export function createAttributeCache({
  clock,
  ttlMs,
  isHidden,
  limit,
  group,
  end = () => undefined,
}: AttributeCacheOptions): AttributeCache {
  const nodes = new Map<number, Known>();
  /** Of nodes that are not among them. */
  const told = createKernelRights();
  const share = limit.join(dropOldest);
  let order = 0;
  /** Never the same for two states of a node, also not when it was forgotten in between. */
  let epochs = 0;
  /** Of nodes that are forgotten: when, in the order of events, one of them was changed by ourselves last. */
  let changedBefore = 0;
  const relyMs = createAttributeTtl(clock, ttlMs);
  const rightsOf = createRightsOf();

  function of(id: number): Known {
    const found = nodes.get(id);
    if (found !== undefined) return found;
    const made: Known = {
      ...{ attributes: undefined, at: never, relyMs: 0, order: 0, epoch: ++epochs, changing: 0 },
      ...{ reached: undefined, ended: [], isTorn: false, isTied: false, isTouched: false, isChanged: false },
      ...{ toldSize: undefined, toldRights: told.get(id), toldEpoch: -1, isHidden: isHidden(id) },
    };
    nodes.set(id, made);
    told.forget(id);
    share.add(1);
    return made;
  }

  function dropOldest(): void {
    const enough = nodes.size * (1 - droppedPart);
    for (const [id, known] of nodes) {
      if (nodes.size <= enough) return;
      if (known.changing > 0) continue;
      drop(id, known);
      if (known.toldRights !== undefined) told.keep(id, known.toldRights);
    }
  }

  function forget(id: number): void {
    const known = nodes.get(id);
    if (known === undefined) told.forget(id);
    else drop(id, known);
  }

  function drop(id: number, known: Known): void {
    if (known.isChanged) changedBefore = Math.max(changedBefore, known.order);
    nodes.delete(id);
    share.add(-1);
  }

  function learn(known: Known, attributes: Attributes, at: number): Attributes {
    known.attributes = attributes;
    known.at = at;
    known.relyMs = relyMs(attributes);
    known.order = ++order;
    return attributes;
  }

  function freshMs(id: number): number {
    const known = nodes.get(id);
    if (known === undefined || known.changing > 0) return 0;
    return Math.max(0, known.at + known.relyMs - clock.elapsed());
  }

  function update(id: number, attributes: Attributes, since: number, at = clock.elapsed()): Attributes {
    const known = of(id);
    const before = known.attributes;
    if (before === undefined) {
      // From a listing, it may be: of before a change that nothing else is known of any more.
      const isSure = known.changing === 0 && since >= changedBefore;
      return learn(known, attributes, isSure ? at : never);
    }
    if (known.changing > 0 || since < known.order) {
      if (!isNewer(attributes, before)) return before;
      // Who may use it counts from now on, whatever else becomes of it.
      if (!areSameRights(before, attributes)) known.attributes = { ...before, ...rightsOf(attributes) };
      return attributes;
    }
    if (!isUnchanged(before, attributes)) {
      if (!known.isTouched || !isSameContent(before, attributes)) known.epoch = ++epochs;
      known.isTouched = false;
      return learn(known, attributes, at);
    }
    // The time of the last access may be another.
    known.attributes = attributes;
    known.at = at;
    known.relyMs = relyMs(attributes);
    return attributes;
  }

  /** None of our own is under way: what do they say together? */
  function settle(known: Known): void {
    const isChain = known.ended.length === 0 && !known.isTorn;
    const afters = [known.reached, ...known.ended.map(({ after }) => after)].filter((one) => one !== undefined);
    if (afters.length === 0) {
      known.isTied = false;
      return;
    }
    if (!isChain) known.epoch = ++epochs;
    const last = afters.reduce((a, b) => (isNewer(b, a) ? b : a));
    const isSure = isChain && !known.isTied;
    learn(known, isChain ? (known.reached ?? last) : last, isSure ? clock.elapsed() : never);
    known.ended.length = 0;
    known.reached = undefined;
    known.isTorn = false;
    known.isTied = false;
  }

  function change(id: number): Change {
    const known = of(id);
    known.changing++;
    known.isChanged = true;
    return {
      ended: (wcc) => {
        known.changing--;
        known.order = ++order;
        // Nothing is known of what it did. What is seen next tells, and looks like somebody else's doing.
        if (wcc?.after === undefined) {
          known.at = never;
          known.isTied = true;
        } else if (known.ended.length < mostOverlapping) known.ended.push(wcc);
        else known.isTorn = true;
        followChain(known);
        if (known.changing === 0) settle(known);
      },
    };
  }

  return {
    ...{ update, change, freshMs, forget },
    now: () => order,
    relyMs: (id) => {
      const known = nodes.get(id);
      return known === undefined || known.changing > 0 ? ttlMs : Math.max(ttlMs, known.relyMs);
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
      known.isTouched = true;
    },
    epoch: (id) => of(id).epoch,
    attrReply: (id) => {
      const known = of(id);
      if (known.attributes === undefined) throw new Error(`nothing is known of node ${id}`);
      const ahead = end(id);
      const size = ahead === undefined ? (latestSize(known) ?? 0) : Math.max(ahead, sizeOf(known));
      known.toldSize = size;
      known.toldRights = rightsOf(known.attributes);
      known.toldEpoch = known.epoch;
      // When it was changed is known when the server has answered.
      const attr = attrOf(known.attributes, size, known.isHidden, group);
      return { attr, attrMs: ahead === undefined ? freshMs(id) : 0 };
    },
    kernelView: (id) => {
      const { toldSize: size, toldRights: rights, toldEpoch, epoch } = of(id);
      return { size, rights, isAll: toldEpoch === epoch };
    },
    kernelRights: (id) => {
      const known = nodes.get(id);
      return known === undefined ? told.get(id) : (known.toldRights ?? known.attributes);
    },
    grew: (id, size) => {
      const known = of(id);
      if (known.toldSize !== undefined && known.toldSize < size) known.toldSize = size;
    },
    setHidden: (id, isIt) => {
      of(id).isHidden = isIt;
    },
    [Symbol.dispose]: () => share[Symbol.dispose](),
  };
}

/** A call that changes a node: what the server says of before and after is taken in, however it ends. */
export async function changing<R>(
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
