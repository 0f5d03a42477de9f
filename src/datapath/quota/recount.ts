import { randomUUID } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { TreeCount } from './count-tree.ts';
import { epochOf, type LedgerBase, readBase, sumGrants, temporaryName, writeBase } from './ledger.ts';
import type { LedgerFiles } from './ledger-files.ts';

export interface RecountParts {
  readonly files: LedgerFiles;
  readonly clock: Clock;
  count(signal: AbortSignal): Promise<TreeCount>;
}

/** Members do not use a view of the ledger older than this. */
export const maxViewAgeMs = 2_000;
/** After this time, each member has read the new epoch or is not using the volume. */
const graceMs = maxViewAgeMs + 1_000;

/** The lock file: the member that creates it may count. */
const lockName = 'scan';
const renewMs = 15_000;
/** A lock that was not renewed for this long, while we watched, is stale. */
const staleLockMs = 120_000;

/**
 * Counts the tree and starts a new epoch with the result. False: another member is counting. The signal stops a running
 * count; the lock is released anyway.
 */
export type Recount = (signal: AbortSignal) => Promise<boolean>;

export function createRecount(parts: RecountParts): Recount {
  const { files, clock } = parts;
  const token = randomUUID();
  let watchedLock: { readonly fingerprint: string; readonly unchangedSince: number } | undefined;

  /** A lock is stale if it does not change while this process watches it, so no clocks are compared. */
  async function takeOver(): Promise<boolean> {
    const fingerprint = await files.fingerprint(lockName);
    if (fingerprint === undefined) return false;
    if (watchedLock?.fingerprint !== fingerprint) watchedLock = { fingerprint, unchangedSince: clock.elapsed() };
    if (clock.elapsed() - watchedLock.unchangedSince < staleLockMs || !(await files.touch(lockName, fingerprint)))
      return false;
    watchedLock = undefined;
    await files.write(lockName, token);
    return true;
  }

  const isOurs = async (): Promise<boolean> => (await files.read(lockName)) === token;

  return async (signal) => {
    if (!(await files.tryCreate(lockName, token)) && !(await takeOver())) return false;
    using renewing = repeatEvery(clock, renewMs, () => void files.touch(lockName).catch(() => undefined));
    try {
      const newEpoch = await startEpoch(files);
      if (newEpoch.epoch > 1) await clock.sleep(graceMs, signal);
      const counted = await parts.count(signal);
      // Another member considered this lock stale and started a count: discard this one.
      if (!(await isOurs())) return false;
      const used = counted.complete ? counted.bytes : Math.max(counted.bytes, newEpoch.used);
      await writeBase(files, { epoch: newEpoch.epoch, used, counting: false, countedAt: clock.now() });
      await removeOldGrants(files, newEpoch.epoch);
      return true;
    } finally {
      renewing[Symbol.dispose]();
      if (await isOurs().catch(() => false)) await files.remove(lockName).catch(() => undefined);
    }
  };
}

/**
 * The epoch ends before the count starts: writes during the count are granted in the new epoch and count there, whether
 * the count sees them or not. Earlier grants count as used until the count is done. Nothing is granted in the old epoch
 * once the new base is visible, so the second pass over the old grants sees all of them.
 */
async function startEpoch(files: LedgerFiles): Promise<LedgerBase> {
  const last = await readBase(files);
  // Nothing has been granted yet.
  if (last === undefined) return { epoch: 1, used: 0, counting: true, countedAt: 0 };
  let next = last;
  for (let pass = 0; pass < 2; pass++) {
    const used = Math.max(0, last.used + (await sumGrants(files, await files.names(), last.epoch)));
    next = { ...last, epoch: last.epoch + 1, used, counting: true };
    await writeBase(files, next);
  }
  return next;
}

/**
 * Removes grants of past epochs, recognized by name, and files of processes that died while writing. A process that is
 * writing now repeats its write.
 */
async function removeOldGrants(files: LedgerFiles, epoch: number): Promise<void> {
  for (const name of await files.names()) {
    const isOver = (epochOf(name) ?? epoch) < epoch;
    if (isOver || name.startsWith(temporaryName(''))) await files.remove(name);
  }
}

function repeatEvery(clock: Clock, ms: number, work: () => void): Disposable {
  let timer: Disposable;
  const next = (): void => {
    timer = clock.after(ms, () => {
      work();
      next();
    });
  };
  next();
  return { [Symbol.dispose]: () => timer[Symbol.dispose]() };
}
