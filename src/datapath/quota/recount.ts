import { randomUUID } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Counted } from './count-tree.ts';
import { type Base, epochOf, readBase, scratchName, sumOf, writeBase } from './ledger.ts';
import type { LedgerFiles } from './ledger-files.ts';

export interface RecountParts {
  readonly files: LedgerFiles;
  readonly clock: Clock;
  count(signal: AbortSignal): Promise<Counted>;
}

/** No member goes by what it saw of the ledger longer ago. */
export const freshMs = 2_000;
/** So by then each has seen that a new epoch has begun, or has nothing to do with the volume at the moment. */
const graceMs = freshMs + 1_000;

/** By one member at a time: who makes this file. */
const turnName = 'scan';
const renewMs = 15_000;
/** A turn that has not been renewed for so long, while we looked, is nobody's any more. */
const deadMs = 120_000;

/**
 * Counts the tree, and begins a new epoch with it. False: another member is at it. The signal ends a count that is under way;
 * the turn is given back all the same.
 */
export type Recount = (signal: AbortSignal) => Promise<boolean>;

export function createRecount(parts: RecountParts): Recount {
  const { files, clock } = parts;
  const token = randomUUID();
  let watched: { readonly fingerprint: string; readonly since: number } | undefined;

  /** By watching it not change: no two clocks are compared. */
  async function takeOver(): Promise<boolean> {
    const fingerprint = await files.look(turnName);
    if (fingerprint === undefined) return false;
    if (watched?.fingerprint !== fingerprint) watched = { fingerprint, since: clock.elapsed() };
    if (clock.elapsed() - watched.since < deadMs || !(await files.renew(turnName, fingerprint))) return false;
    watched = undefined;
    await files.write(turnName, token);
    return true;
  }

  const isOurs = async (): Promise<boolean> => (await files.read(turnName)) === token;

  return async (signal) => {
    if (!(await files.take(turnName, token)) && !(await takeOver())) return false;
    using renewing = repeatEvery(clock, renewMs, () => void files.renew(turnName).catch(() => undefined));
    try {
      const begun = await begin(files);
      if (begun.epoch > 1) await clock.sleep(graceMs, signal);
      const counted = await parts.count(signal);
      // Taken for dead, and another has begun: then this count is of no use.
      if (!(await isOurs())) return false;
      const used = counted.complete ? counted.bytes : Math.max(counted.bytes, begun.used);
      await writeBase(files, { epoch: begun.epoch, used, counting: false, countedAt: clock.now() });
      await removeOldGrants(files, begun.epoch);
      return true;
    } finally {
      renewing[Symbol.dispose]();
      if (await isOurs().catch(() => false)) await files.remove(turnName).catch(() => undefined);
    }
  };
}

/**
 * The epoch ends before the count begins: whatever is written during the count is granted in the new one, and counts
 * whether the count sees it or not. What was granted before counts as used until the count is done. Nobody is granted
 * anything in the old epoch once the new base can be seen, so the second look at the old grants has them all.
 */
async function begin(files: LedgerFiles): Promise<Base> {
  const last = await readBase(files);
  // Nobody has been granted anything yet.
  if (last === undefined) return { epoch: 1, used: 0, counting: true, countedAt: 0 };
  let next = last;
  for (let again = 0; again < 2; again++) {
    const used = Math.max(0, last.used + (await sumOf(files, await files.names(), last.epoch)));
    next = { ...last, epoch: last.epoch + 1, used, counting: true };
    await writeBase(files, next);
  }
  return next;
}

/**
 * Grants of epochs that are over: their names tell, so that none of this epoch is hit. And what processes that ended were
 * writing; one that is writing at this moment does it again.
 */
async function removeOldGrants(files: LedgerFiles, epoch: number): Promise<void> {
  for (const name of await files.names()) {
    const isOver = (epochOf(name) ?? epoch) < epoch;
    if (isOver || name.startsWith(scratchName(''))) await files.remove(name);
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
