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
  limits: { readonly maxConcurrent: number; readonly itemTimeoutMs: number },
): FairPass<K> {
  const { maxConcurrent, itemTimeoutMs } = limits;
  const lastTurns = new Map<K, number>();
  const running = new Set<K>();
  let lastTurn = 0;

  async function startItem(item: K, scope: Scope, work: (item: K, scope: Scope) => Promise<void>): Promise<void> {
    if (scope.signal.aborted || running.has(item)) return;
    lastTurns.set(item, ++lastTurn);
    running.add(item);
    using limit = clock.deadline(itemTimeoutMs, scope.signal);
    const working = work(item, { ...scope, signal: limit.signal }).finally(() => running.delete(item));
    if (await endsWithin(working, itemTimeoutMs + graceMs, clock)) await working;
  }

  return async (items, scope, work) => {
    const all = new Set(items);
    for (const item of lastTurns.keys()) if (!all.has(item)) lastTurns.delete(item);
    const waitedLongestFirst = [...all].toSorted((a, b) => (lastTurns.get(a) ?? 0) - (lastTurns.get(b) ?? 0));
    await eachBounded(waitedLongestFirst, maxConcurrent, (item) => startItem(item, scope, work));
  };
}
