import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';

/**
 * One pass over the items. It begins with those that waited longest for their turn, so items behind many dead ones get theirs in the next
 * pass at the latest. An item whose work ignores its signal is left running after its deadline; later passes skip it until it ends. The first
 * failure stops the pass and is thrown. The pass ends early, without an error, when its scope does.
 */
export type FairPass<K> = (
  items: Iterable<K>,
  scope: Scope,
  work: (item: K, scope: Scope) => Promise<void>,
) => Promise<void>;

/** An item that hears its signal ends within this. */
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
