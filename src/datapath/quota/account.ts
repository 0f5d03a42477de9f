import type { Clock } from '#base/clock.ts';
import { grantChunkBytes, type Ledger, type LedgerView } from './ledger.ts';
import { maxViewAgeMs } from './recount.ts';

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
  isGranted(bytes: number): boolean;
  /** Counts the bytes from now on, until they are settled. */
  charge(bytes: number): void;
  /** The bytes already count and are not settled. */
  adopt(bytes: number): void;
  /** Replaces a charge by the actual growth; negative: freed. */
  settle(chargedBytes: number, delta: number): void;
  /** Unsettled growth may have to move into the next epoch: until then the ledger must be polled. */
  hasUnsettled(): boolean;
  /** Reads the ledger and moves to its epoch. */
  catchUp(): Promise<LedgerView | undefined>;
  /** Obtains a grant for this many bytes. False: there is no room. */
  obtainGrant(bytes: number): Promise<boolean>;
  /** Whether maintenance is due, so that no write waits for it later. */
  isMaintenanceDue(): boolean;
  runMaintenance(): Promise<void>;
  /** Returns unused grants. */
  close(): Promise<void>;
}

export interface AccountParts {
  readonly ledger: Ledger;
  readonly storedGrowth: StoredGrowth;
  readonly clock: Clock;
}

const noLateGrowth = { bytes: 0, at: 0 };

export function createAccount({ ledger, storedGrowth, clock }: AccountParts): Account {
  let { epoch, growth } = storedGrowth.read();
  /** The part of `growth` that is charged but not settled. */
  let unsettled = 0;
  /** Settled while a new epoch may already have started: its count may have been too early to see it. */
  let lateGrowth = noLateGrowth;
  // Assume no grant beyond the growth: the dead predecessor may have been about to return it.
  let granted = growth;

  const isRecent = (view: LedgerView, ms: number): boolean => clock.elapsed() - view.readAt <= ms;
  const isFresh = (view: LedgerView | undefined): view is LedgerView =>
    view !== undefined && view.epoch === epoch && isRecent(view, maxViewAgeMs);
  const chunk = (): number => grantChunkBytes(ledger.view?.limit ?? 0);
  const roomIn = ({ limit, used, otherGrants: others }: LedgerView): number => limit - used - others;
  /** More is used than granted, because file systems use more than is written; or much of the grant is idle. */
  const needsCorrection = (): boolean => growth > granted || granted - growth > 2 * chunk();
  /** Fetch the next chunk before a write waits for it. */
  const needsChunk = (view: LedgerView): boolean => granted - growth < chunk() / 2 && roomIn(view) > granted;

  function addGrowth(by: number): void {
    growth += by;
    storedGrowth.write(epoch, growth);
  }

  /** Unsettled and late growth moves along: whether the count saw it is unknown. */
  async function enterEpoch(next: number): Promise<void> {
    epoch = next;
    growth = unsettled + lateGrowth.bytes;
    lateGrowth = noLateGrowth;
    granted = 0;
    storedGrowth.write(epoch, growth);
    if (growth > 0) await correctGrant();
  }

  async function correctGrant(): Promise<void> {
    const newGrant = growth > granted ? growth : growth + chunk();
    // A smaller grant counts at once, a larger one when it is written.
    granted = Math.min(granted, newGrant);
    await ledger.setGrant(epoch, newGrant);
    granted = newGrant;
  }

  async function obtainGrant(bytes: number): Promise<boolean> {
    const answer = await ledger.raiseGrant(epoch, growth + bytes, granted);
    if (answer === 'full') return false;
    if (answer === 'over') await catchUp();
    else granted = answer;
    return true;
  }

  async function catchUp(): Promise<LedgerView | undefined> {
    const view = await ledger.refresh();
    if (view !== undefined && view.epoch !== epoch) await enterEpoch(view.epoch);
    else if (view !== undefined && view.readAt >= lateGrowth.at) lateGrowth = noLateGrowth;
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
    isGranted: (bytes) => isFresh(ledger.view) && growth + bytes <= granted,
    charge: (bytes) => {
      unsettled += bytes;
      addGrowth(bytes);
    },
    adopt: (bytes) => {
      unsettled += bytes;
    },
    settle: (chargedBytes, delta) => {
      unsettled -= chargedBytes;
      const { view } = ledger;
      const isKnown = isFresh(view);
      if (!isKnown && delta > 0) lateGrowth = { bytes: lateGrowth.bytes + delta, at: clock.elapsed() };
      // Space freed during a count may already be free in it and must not be subtracted again.
      const isCredited = delta > 0 || (isKnown && !view.counting);
      if (epoch !== 0) addGrowth((isCredited ? delta : 0) - chargedBytes);
    },
    hasUnsettled: () => unsettled > 0 || lateGrowth.bytes > 0,
    catchUp,
    obtainGrant,
    isMaintenanceDue: () => {
      const { view } = ledger;
      return view === undefined || !isRecent(view, maxViewAgeMs / 2) || needsCorrection() || needsChunk(view);
    },
    runMaintenance: async () => {
      const { view } = ledger;
      if (view === undefined || !isRecent(view, maxViewAgeMs / 2)) await catchUp();
      if (!isFresh(ledger.view)) return;
      if (needsCorrection()) await correctGrant();
      if (isFresh(ledger.view) && needsChunk(ledger.view)) await obtainGrant(Math.max(0, granted - growth));
    },
    close: async () => {
      if (epoch === 0 || granted <= growth) return;
      granted = growth;
      await ledger.setGrant(epoch, growth);
    },
  };
}
