import type { Clock } from '#base/clock.ts';
import { chunkOf, type Ledger, type View } from './ledger.ts';
import { freshMs } from './recount.ts';

/** What this mount has added to the volume in which epoch: a number that outlives the process. Epoch 0: none. */
export interface KeptGrowth {
  read(): { readonly epoch: number; readonly growth: number };
  /** "Becomes so much": doing it twice does nothing, and both become it in one step, or the epoch 0. */
  write(epoch: number, growth: number): void;
}

/** One mount's part of the ledger. What waits is for one caller at a time. */
export interface Account {
  readonly growth: number;
  readonly epoch: number;
  /** What it knows of the ledger can be relied on. */
  isCurrent(): boolean;
  /** What it may grow by without asking anybody. */
  fits(bytes: number): boolean;
  /** From now on they count, until they are settled. */
  charge(bytes: number): void;
  /** They count already, and are not settled. */
  adopt(bytes: number): void;
  /** What was charged has come to that; less than 0: it was freed. */
  settle(charged: number, delta: number): void;
  /** There is something that may have to go along into the next epoch: until then the ledger must be looked at. */
  isUnderWay(): boolean;
  /** Looks into the ledger, and goes over to the epoch that it finds. */
  catchUp(): Promise<View | undefined>;
  /** So that so many fit. False: there is no room for them. */
  obtain(bytes: number): Promise<boolean>;
  /** There is something to be done, so that nobody has to wait for it later. */
  isDue(): boolean;
  tend(): Promise<void>;
  /** Gives back what is not used. */
  close(): Promise<void>;
}

export interface AccountParts {
  readonly ledger: Ledger;
  readonly kept: KeptGrowth;
  readonly clock: Clock;
}

const noneLate = { bytes: 0, at: 0 };

export function createAccount({ ledger, kept, clock }: AccountParts): Account {
  let { epoch, growth } = kept.read();
  /** Of `growth`, what was charged and is not settled. */
  let charged = 0;
  /** Settled when it was not known whether a new epoch had begun: its count may have come too early to see it. */
  let late = noneLate;
  // What the dead predecessor was granted beyond what it used, it may have been about to take back.
  let granted = growth;

  const isRecent = (view: View, ms: number): boolean => clock.elapsed() - view.at <= ms;
  const isFresh = (view: View | undefined): view is View =>
    view !== undefined && view.epoch === epoch && isRecent(view, freshMs);
  const chunk = (): number => chunkOf(ledger.view?.limit ?? 0);
  const roomIn = ({ limit, used, others }: View): number => limit - used - others;
  /** More is spent than was granted, since file systems take more than is written; or much lies idle. */
  const isOff = (): boolean => growth > granted || granted - growth > 2 * chunk();
  /** The next chunk is fetched before anybody waits for it. */
  const isShort = (view: View): boolean => granted - growth < chunk() / 2 && roomIn(view) > granted;

  function count(by: number): void {
    growth += by;
    kept.write(epoch, growth);
  }

  /** What is under way goes along, and what has come late: whether the count sees it is not known. */
  async function enter(next: number): Promise<void> {
    epoch = next;
    growth = charged + late.bytes;
    late = noneLate;
    granted = 0;
    kept.write(epoch, growth);
    if (growth > 0) await correct();
  }

  async function correct(): Promise<void> {
    const right = growth > granted ? growth : growth + chunk();
    // Less counts at once; more when it is written.
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

  async function catchUp(): Promise<View | undefined> {
    const view = await ledger.look();
    if (view !== undefined && view.epoch !== epoch) await enter(view.epoch);
    else if (view !== undefined && view.at >= late.at) late = noneLate;
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
      if (!isKnown && delta > 0) late = { bytes: late.bytes + delta, at: clock.elapsed() };
      // What is freed during a count may be free in it already, and must not be subtracted from it once more.
      const isCredited = delta > 0 || (isKnown && !view.counting);
      if (epoch !== 0) count((isCredited ? delta : 0) - was);
    },
    isUnderWay: () => charged > 0 || late.bytes > 0,
    catchUp,
    obtain,
    isDue: () => {
      const { view } = ledger;
      return view === undefined || !isRecent(view, freshMs / 2) || isOff() || isShort(view);
    },
    tend: async () => {
      const { view } = ledger;
      if (view === undefined || !isRecent(view, freshMs / 2)) await catchUp();
      if (!isFresh(ledger.view)) return;
      if (isOff()) await correct();
      if (isFresh(ledger.view) && isShort(ledger.view)) await obtain(Math.max(0, granted - growth));
    },
    close: async () => {
      if (epoch === 0 || granted <= growth) return;
      granted = growth;
      await ledger.set(epoch, growth);
    },
  };
}
