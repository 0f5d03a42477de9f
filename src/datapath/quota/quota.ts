import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { type Account, createAccount, type KeptGrowth } from './account.ts';
import type { Ledger, View } from './ledger.ts';
import { freshMs, type Recount } from './recount.ts';

/** Holds one mount to its volume's size, together with the mounts of other nodes. */
export interface Quota {
  /**
   * Before something is written that may take so many bytes more on the server's disk: from now on they count. Rejects with
   * EDQUOT when there is no room for them, and with what went wrong when that cannot be found out.
   */
  admit(bytes: number): Promise<void>;
  /** A predecessor was asked for them, and they are not settled: what it asked for counts already. */
  adopt(bytes: number): void;
  /**
   * Afterwards: so many it took, or freed (less than 0). `admitted`: what `admit` was asked for it, which no longer counts.
   * Also for what nobody was asked for: removing, cutting.
   */
  changed(delta: number, admitted?: number): void;
  /** Another one after each count; 0: nothing was counted yet. */
  epoch(): number;
  /**
   * Before something is freed: the epoch in which that counts. If it is over afterwards, the count may have seen it already, and
   * it must not be told. Undefined: a count is under way, which may see it or not.
   */
  freeing(): Promise<number | undefined>;
  /** What df shows. Of what other nodes hold in advance, a chunk or two each may show as used. */
  statfs(): { readonly bytes: number; readonly used: number };
  /** Ends a count that is under way, and gives back what is not used. */
  close(): Promise<void>;
}

export interface QuotaParts {
  readonly ledger: Ledger;
  readonly recount: Recount;
  readonly kept: KeptGrowth;
  readonly clock: Clock;
  /** The volume's size when it was mounted. */
  readonly limit: number;
  /** Ends waiting. */
  readonly signal: AbortSignal;
  /** What went wrong while nobody waited for it. */
  failed(cause: unknown): void;
}

/** Writers outside our client, and what crashes have left, are found by the next count. */
const countEveryMs = 10 * 60_000;
/** Where there is no room a count may find some; but not at every write. */
const countFullMs = 30_000;
/** During a count all that was granted before counts as used: it is waited for before anybody is told that there is no room. */
const recountWaitMs = 10_000;
const pauseMs = 100;
const mostRaises = 16;

export function createQuota(parts: QuotaParts): Quota {
  const { ledger, clock, signal, failed } = parts;
  const account = createAccount(parts);
  const queue = createQueue();
  const counts = createCounts(parts);
  let isTending = false;
  let watching: Disposable | undefined;

  async function tend(): Promise<void> {
    try {
      await queue(() => account.tend());
      counts.saw(ledger.view);
      counts.due(countEveryMs);
    } catch (cause) {
      if (!signal.aborted) failed(cause);
    } finally {
      isTending = false;
    }
  }

  /** While somebody uses the mount, so that nobody has to wait. */
  function tendIfDue(): void {
    if (isTending || signal.aborted || !account.isDue()) return;
    isTending = true;
    void tend();
  }

  /**
   * What is under way when a new epoch begins has to be in it before its count is done, or it is nowhere: so the ledger is
   * looked at also while nobody uses the mount.
   */
  function watch(): void {
    if (watching !== undefined || signal.aborted || !account.isUnderWay()) return;
    watching = clock.after(freshMs / 2, () => {
      watching = undefined;
      if (account.isUnderWay()) tendIfDue();
      watch();
    });
  }

  return {
    admit: (bytes) => {
      tendIfDue();
      if (!account.fits(bytes)) return queue(() => obtain(parts, account, counts, bytes)).then(watch);
      account.charge(bytes);
      watch();
      return Promise.resolve();
    },
    adopt: (bytes) => {
      account.adopt(bytes);
      watch();
    },
    epoch: () => account.epoch,
    freeing: async () => {
      if (!account.isCurrent()) await queue(() => account.catchUp());
      return ledger.view?.counting === false ? account.epoch : undefined;
    },
    changed: (delta, admitted = 0) => {
      account.settle(admitted, delta);
      tendIfDue();
      watch();
    },
    statfs: () => {
      tendIfDue();
      const { view } = ledger;
      if (view === undefined) return { bytes: parts.limit, used: 0 };
      const own = view.epoch === account.epoch ? account.growth : 0;
      return { bytes: view.limit, used: Math.max(0, view.used + view.others + own) };
    },
    close: async () => {
      watching?.[Symbol.dispose]();
      await counts.stop();
      await queue(() => account.close());
    },
  };
}

/** For one caller at a time. */
async function obtain(
  { ledger, clock, signal }: QuotaParts,
  account: Account,
  counts: Counts,
  bytes: number,
): Promise<void> {
  const since = clock.elapsed();
  for (let raises = 0; raises < mostRaises; ) {
    signal.throwIfAborted();
    if (account.fits(bytes)) return account.charge(bytes);
    const view = await account.catchUp();
    counts.saw(view);
    if (view === undefined) {
      // Nobody has counted yet: without that there is nothing to go by.
      if (!(await counts.now())) await clock.sleep(pauseMs, signal);
      continue;
    }
    if (account.fits(bytes)) return account.charge(bytes);
    raises++;
    if (await account.obtain(bytes)) continue;
    if (ledger.view?.counting !== true || clock.elapsed() - since > recountWaitMs) break;
    raises = 0;
    await clock.sleep(pauseMs, signal);
  }
  counts.due(countFullMs);
  throw new Errno('EDQUOT');
}

interface Counts {
  now(): Promise<boolean>;
  saw(view: View | undefined): void;
  /** Begins a count if the last one is so long ago. */
  due(ms: number): void;
  stop(): Promise<void>;
}

/** When the tree is counted, by whichever node comes first. */
function createCounts({ recount, clock, failed }: QuotaParts): Counts {
  const stopping = new AbortController();
  let running: Promise<boolean> | undefined;
  let epoch = 0;
  let countedAt = Number.NEGATIVE_INFINITY;

  const start = (): Promise<boolean> => {
    running ??= recount(stopping.signal).finally(() => {
      // Also where another is at it, or it failed: it need not be tried again at once.
      countedAt = clock.elapsed();
      running = undefined;
    });
    return running;
  };

  return {
    now: start,
    saw: (view) => {
      if (view === undefined || view.counting || view.epoch === epoch) return;
      // Of the first that is seen only the clock of who made it tells how old it is.
      const age = epoch === 0 ? Math.max(0, clock.now() - view.countedAt) : 0;
      countedAt = clock.elapsed() - age;
      epoch = view.epoch;
    },
    due: (ms) => {
      if (running !== undefined || stopping.signal.aborted || clock.elapsed() - countedAt < ms) return;
      start().catch((cause: unknown) => {
        if (!stopping.signal.aborted) failed(cause);
      });
    },
    stop: async () => {
      stopping.abort();
      await running?.catch(() => undefined);
    },
  };
}

/** One after the other. */
function createQueue(): <T>(work: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve();
  return (work) => {
    const done = last.then(work, work);
    last = done.catch(() => undefined);
    return done;
  };
}
