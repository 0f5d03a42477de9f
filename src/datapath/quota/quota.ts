import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { type Account, createAccount, type StoredGrowth } from './account.ts';
import type { Ledger, LedgerView } from './ledger.ts';
import { maxViewAgeMs, type Recount } from './recount.ts';

/** Enforces a volume's size for one mount, together with the mounts of other nodes. */
export interface Quota {
  /**
   * Call before a write that may use this many more bytes on the server's disk; they count from now on. Rejects with
   * EDQUOT if there is no room, and with the error if that cannot be determined.
   */
  admit(bytes: number): Promise<void>;
  /** Bytes that a predecessor was admitted and has not settled: they already count. */
  adopt(bytes: number): void;
  /**
   * Call afterwards with the bytes used, or freed (negative). `admitted`: the bytes passed to `admit` for it, which no
   * longer count. Also for changes without `admit`: removal, truncation.
   */
  recordUsage(delta: number, admitted?: number): void;
  /** Changes with each count; 0: nothing was counted yet. */
  epoch(): number;
  /**
   * Call before freeing space: returns the epoch in which it counts. If the epoch has changed afterwards, do not report
   * it, since the count may have seen it. Undefined: a count is in progress and may or may not see it.
   */
  epochBeforeFree(): Promise<number | undefined>;
  /** The values for statfs. Grants held by other nodes, a chunk or two each, may show as used. */
  statfs(): { readonly bytes: number; readonly used: number };
  /** Stops a running count and returns unused grants. */
  close(): Promise<void>;
}

export interface QuotaParts {
  readonly ledger: Ledger;
  readonly recount: Recount;
  readonly storedGrowth: StoredGrowth;
  readonly clock: Clock;
  /** The volume's size at mount time. */
  readonly limit: number;
  /** Aborts waiting. */
  readonly signal: AbortSignal;
  /** Reports background errors. */
  failed(cause: unknown): void;
}

/** Each count finds writes by other clients and leftovers of crashes. */
const recountIntervalMs = 10 * 60_000;
/** When the volume is full a count may find space, but not at every write. */
const recountWhenFullMs = 30_000;
/** During a count all earlier grants count as used: wait for it before reporting that there is no room. */
const recountWaitMs = 10_000;
const retryMs = 100;
const maxRaises = 16;

export function createQuota(parts: QuotaParts): Quota {
  const { ledger, clock, signal, failed } = parts;
  const account = createAccount(parts);
  const runQueued = createQueue();
  const recounts = createRecountSchedule(parts);
  let isMaintaining = false;
  let watchTimer: Disposable | undefined;

  async function runMaintenance(): Promise<void> {
    try {
      await runQueued(() => account.runMaintenance());
      recounts.recordView(ledger.view);
      recounts.startIfOlder(recountIntervalMs);
    } catch (cause) {
      if (!signal.aborted) failed(cause);
    } finally {
      isMaintaining = false;
    }
  }

  /** Maintains the account while the mount is in use, so that no write waits for it. */
  function maintainIfDue(): void {
    if (isMaintaining || signal.aborted || !account.isMaintenanceDue()) return;
    isMaintaining = true;
    void runMaintenance();
  }

  /**
   * Unsettled charges must move into a new epoch before its count ends, or they are lost: so the ledger is polled even
   * while the mount is idle.
   */
  function watchLedger(): void {
    if (watchTimer !== undefined || signal.aborted || !account.hasUnsettled()) return;
    watchTimer = clock.after(maxViewAgeMs / 2, () => {
      watchTimer = undefined;
      if (account.hasUnsettled()) maintainIfDue();
      watchLedger();
    });
  }

  return {
    admit: (bytes) => {
      maintainIfDue();
      if (!account.isGranted(bytes))
        return runQueued(() => admitWithGrant(parts, account, recounts, bytes)).then(watchLedger);
      account.charge(bytes);
      watchLedger();
      return Promise.resolve();
    },
    adopt: (bytes) => {
      account.adopt(bytes);
      watchLedger();
    },
    epoch: () => account.epoch,
    epochBeforeFree: async () => {
      if (!account.isCurrent()) await runQueued(() => account.catchUp());
      return ledger.view?.counting === false ? account.epoch : undefined;
    },
    recordUsage: (delta, admitted = 0) => {
      account.settle(admitted, delta);
      maintainIfDue();
      watchLedger();
    },
    statfs: () => {
      maintainIfDue();
      const { view } = ledger;
      if (view === undefined) return { bytes: parts.limit, used: 0 };
      const own = view.epoch === account.epoch ? account.growth : 0;
      return { bytes: view.limit, used: Math.max(0, view.used + view.otherGrants + own) };
    },
    close: async () => {
      watchTimer?.[Symbol.dispose]();
      await recounts.stop();
      await runQueued(() => account.close());
    },
  };
}

/** Only one caller at a time. */
async function admitWithGrant(
  { ledger, clock, signal }: QuotaParts,
  account: Account,
  recounts: RecountSchedule,
  bytes: number,
): Promise<void> {
  const startedAt = clock.elapsed();
  for (let raises = 0; raises < maxRaises; ) {
    signal.throwIfAborted();
    if (account.isGranted(bytes)) return account.charge(bytes);
    const view = await account.catchUp();
    recounts.recordView(view);
    if (view === undefined) {
      // Nothing was counted yet, so no grant is possible.
      if (!(await recounts.start())) await clock.sleep(retryMs, signal);
      continue;
    }
    if (account.isGranted(bytes)) return account.charge(bytes);
    raises++;
    if (await account.obtainGrant(bytes)) continue;
    if (ledger.view?.counting !== true || clock.elapsed() - startedAt > recountWaitMs) break;
    raises = 0;
    await clock.sleep(retryMs, signal);
  }
  recounts.startIfOlder(recountWhenFullMs);
  throw new Errno('EDQUOT');
}

interface RecountSchedule {
  start(): Promise<boolean>;
  recordView(view: LedgerView | undefined): void;
  /** Starts a count if the last one is older than this. */
  startIfOlder(ms: number): void;
  stop(): Promise<void>;
}

/** Schedules counts, done by whichever node comes first. */
function createRecountSchedule({ recount, clock, failed }: QuotaParts): RecountSchedule {
  const stopping = new AbortController();
  let running: Promise<boolean> | undefined;
  let epoch = 0;
  let countedAt = Number.NEGATIVE_INFINITY;

  const start = (): Promise<boolean> => {
    running ??= recount(stopping.signal).finally(() => {
      // Also if another node is counting or it failed: do not retry at once.
      countedAt = clock.elapsed();
      running = undefined;
    });
    return running;
  };

  return {
    start,
    recordView: (view) => {
      if (view === undefined || view.counting || view.epoch === epoch) return;
      // The age of the first count seen is known only by the clock of its node.
      const age = epoch === 0 ? Math.max(0, clock.now() - view.countedAt) : 0;
      countedAt = clock.elapsed() - age;
      epoch = view.epoch;
    },
    startIfOlder: (ms) => {
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

/** Runs work one after the other. */
function createQueue(): <T>(work: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve();
  return (work) => {
    const done = last.then(work, work);
    last = done.catch(() => undefined);
    return done;
  };
}
