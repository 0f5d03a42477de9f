import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';

/**
 * Runs one pass over the items. Starts with the items that waited longest, so items behind many dead ones get their turn in the next pass at
 * the latest. If an item's work ignores its signal, it is left running after its deadline, and later passes skip the item until it ends. The
 * first failure stops the pass and is thrown. An aborted scope ends the pass early, without an error.
 */
export type FairPass<K> = (
  items: Iterable<K>,
  scope: Scope,
  work: (item: K, scope: Scope) => Promise<void>,
) => Promise<void>;

/** How long an item gets to react to its signal. */
const graceMs = 2_000;

export function createFairPass<K>(
  clock: Clock,
  limits: { readonly inParallel: number; readonly itemMs: number },
): FairPass<K> {
  const { inParallel, itemMs } = limits;
  const turns = new Map<K, number>();
  const running = new Set<K>();
  let turn = 0;

  async function begin(item: K, scope: Scope, work: (item: K, scope: Scope) => Promise<void>): Promise<void> {
    if (scope.signal.aborted || running.has(item)) return;
    turns.set(item, ++turn);
    running.add(item);
    using limit = clock.deadline(itemMs, scope.signal);
    const working = work(item, { ...scope, signal: limit.signal }).finally(() => running.delete(item));
    if (await endsWithin(working, itemMs + graceMs, clock)) await working;
  }

  return async (items, scope, work) => {
    const all = new Set(items);
    for (const item of turns.keys()) if (!all.has(item)) turns.delete(item);
    const waitedLongestFirst = [...all].toSorted((a, b) => (turns.get(a) ?? 0) - (turns.get(b) ?? 0));
    await eachBounded(waitedLongestFirst, inParallel, (item) => begin(item, scope, work));
  };
}
