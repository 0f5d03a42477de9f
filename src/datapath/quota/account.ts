import type { Clock } from '#base/clock.ts';
import { chunkOf, type Ledger, type LedgerView } from './ledger.ts';
import { freshMs } from './recount.ts';

/** This mount's growth of the volume in an epoch, stored outside the process. Epoch 0: none. */
export interface StoredGrowth {
  read(): { readonly epoch: number; readonly growth: number };
  /** Sets both values: idempotent and atomic, or the epoch becomes 0. */
  write(epoch: number, growth: number): void;
}

/** One mount's part of the ledger. Only one caller at a time may use the async methods. */
export interface Account {
  readonly growth: number;
  readonly epoch: number;
  /** Whether its view of the ledger is current. */
  isCurrent(): boolean;
  /** Whether the growth fits into the grant without asking. */
  fits(bytes: number): boolean;
  /** Counts the bytes from now on, until they are settled. */
  charge(bytes: number): void;
  /** The bytes already count and are not settled. */
  adopt(bytes: number): void;
  /** Replaces a charge by the actual growth; negative: freed. */
  settle(charged: number, delta: number): void;
  /** Unsettled growth may have to move into the next epoch: until then the ledger must be polled. */
  hasUnsettled(): boolean;
  /** Reads the ledger and moves to its epoch. */
  catchUp(): Promise<LedgerView | undefined>;
  /** Obtains a grant for this many bytes. False: there is no room. */
  obtain(bytes: number): Promise<boolean>;
  /** Whether maintenance is due, so that no write waits for it later. */
  isDue(): boolean;
  runMaintenance(): Promise<void>;
  /** Returns unused grants. */
  close(): Promise<void>;
}

export interface AccountParts {
  readonly ledger: Ledger;
  readonly kept: StoredGrowth;
  readonly clock: Clock;
}

const noLateGrowth = { bytes: 0, at: 0 };

export function createAccount({ ledger, kept, clock }: AccountParts): Account {
  let { epoch, growth } = kept.read();
  /** The part of `growth` that is charged but not settled. */
  let charged = 0;
  /** Settled while a new epoch may already have started: its count may have been too early to see it. */
  let lateGrowth = noLateGrowth;
  // Assume no grant beyond the growth: the dead predecessor may have been about to return it.
  let granted = growth;

  const isRecent = (view: LedgerView, ms: number): boolean => clock.elapsed() - view.at <= ms;
  const isFresh = (view: LedgerView | undefined): view is LedgerView =>
    view !== undefined && view.epoch === epoch && isRecent(view, freshMs);
  const chunk = (): number => chunkOf(ledger.view?.limit ?? 0);
  const roomIn = ({ limit, used, others }: LedgerView): number => limit - used - others;
  /** More is used than granted, because file systems use more than is written; or much of the grant is idle. */
  const isOff = (): boolean => growth > granted || granted - growth > 2 * chunk();
  /** Fetch the next chunk before a write waits for it. */
  const needsChunk = (view: LedgerView): boolean => granted - growth < chunk() / 2 && roomIn(view) > granted;

  function count(by: number): void {
    growth += by;
    kept.write(epoch, growth);
  }

  /** Unsettled and late growth moves along: whether the count saw it is unknown. */
  async function enter(next: number): Promise<void> {
    epoch = next;
    growth = charged + lateGrowth.bytes;
    lateGrowth = noLateGrowth;
    granted = 0;
    kept.write(epoch, growth);
    if (growth > 0) await correct();
  }

  async function correct(): Promise<void> {
    const right = growth > granted ? growth : growth + chunk();
    // A smaller grant counts at once, a larger one when it is written.
    granted = Math.min(granted, right);
    await ledger.set(epoch, right);
    granted = right;
  }

  async function obtain(bytes: number): Promise<boolean> {
    const answer = await ledger.raise(epoch, growth + bytes, granted);
    if (answer === 'full') return false;
    if (answer === 'over') await catchUp();
    else granted = answer;
    return true;
  }

  async function catchUp(): Promise<LedgerView | undefined> {
    const view = await ledger.look();
    if (view !== undefined && view.epoch !== epoch) await enter(view.epoch);
    else if (view !== undefined && view.at >= lateGrowth.at) lateGrowth = noLateGrowth;
    return view;
  }

  return {
    get growth() {
      return growth;
    },
    get epoch() {
      return epoch;
    },
    isCurrent: () => isFresh(ledger.view),
    fits: (bytes) => isFresh(ledger.view) && growth + bytes <= granted,
    charge: (bytes) => {
      charged += bytes;
      count(bytes);
    },
    adopt: (bytes) => {
      charged += bytes;
    },
    settle: (was, delta) => {
      charged -= was;
      const { view } = ledger;
      const isKnown = isFresh(view);
      if (!isKnown && delta > 0) lateGrowth = { bytes: lateGrowth.bytes + delta, at: clock.elapsed() };
      // Space freed during a count may already be free in it and must not be subtracted again.
      const isCredited = delta > 0 || (isKnown && !view.counting);
      if (epoch !== 0) count((isCredited ? delta : 0) - was);
    },
    hasUnsettled: () => charged > 0 || lateGrowth.bytes > 0,
    catchUp,
    obtain,
    isDue: () => {
      const { view } = ledger;
      return view === undefined || !isRecent(view, freshMs / 2) || isOff() || needsChunk(view);
    },
    runMaintenance: async () => {
      const { view } = ledger;
      if (view === undefined || !isRecent(view, freshMs / 2)) await catchUp();
      if (!isFresh(ledger.view)) return;
      if (isOff()) await correct();
      if (isFresh(ledger.view) && needsChunk(ledger.view)) await obtain(Math.max(0, granted - growth));
    },
    close: async () => {
      if (epoch === 0 || granted <= growth) return;
      granted = growth;
      await ledger.set(epoch, growth);
    },
  };
}
