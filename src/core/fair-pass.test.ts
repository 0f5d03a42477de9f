import { expect, test, vi } from 'vitest';
import { silentLog } from '#base/log.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createFairPass } from './fair-pass.ts';

const log = silentLog();
const items = ['a', 'b', 'c', 'd'];

/** Work that ends only when its signal is aborted. */
const workUntilAborted = (_item: string, { signal }: { readonly signal: AbortSignal }): Promise<void> => {
  const { promise, reject } = Promise.withResolvers<void>();
  signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  return promise;
};

test('the next pass continues where dead items cut off the previous one', async () => {
  const clock = createFakeClock();
  const pass = createFairPass<string>(clock, { maxConcurrent: 1, itemTimeoutMs: 20_000 });
  const startedItems: string[] = [];
  for (let round = 0; round < 2; round++) {
    using limit = clock.deadline(30_000, new AbortController().signal);
    const passing = pass(items, { signal: limit.signal, log }, async (item, scope) => {
      startedItems.push(item);
      await workUntilAborted(item, scope).catch(() => undefined);
    });
    await vi.waitFor(() => expect(startedItems).toHaveLength(round * 2 + 1));
    clock.advance(20_000);
    await vi.waitFor(() => expect(startedItems).toHaveLength(round * 2 + 2));
    clock.advance(10_000);
    await passing;
  }
  expect(startedItems).toEqual(items);
});

test('an item that ignores its signal costs its deadline once, and is skipped until it ends', async () => {
  const clock = createFakeClock();
  const pass = createFairPass<string>(clock, { maxConcurrent: 1, itemTimeoutMs: 20_000 });
  const scope = { signal: new AbortController().signal, log };
  const deaf = Promise.withResolvers<void>();
  const startedItems: string[] = [];
  const work = async (item: string): Promise<void> => {
    startedItems.push(item);
    if (item === 'a') await deaf.promise;
  };
  const first = pass(items, scope, work);
  await vi.waitFor(() => expect(startedItems).toEqual(['a']));
  clock.advance(22_000);
  await first;
  expect(startedItems).toEqual(items);
  await pass(items, scope, work);
  expect(startedItems.slice(4)).toEqual(['b', 'c', 'd']);
  deaf.resolve();
  await vi.waitFor(async () => {
    startedItems.length = 0;
    await pass(items, scope, work);
    expect(startedItems[0]).toBe('a');
  });
});

test('works on at most the given number of items at once, and ends at the first failure', async () => {
  const pass = createFairPass<string>(createFakeClock(), { maxConcurrent: 2, itemTimeoutMs: 20_000 });
  const scope = { signal: new AbortController().signal, log };
  const gates = new Map(items.map((item) => [item, Promise.withResolvers<void>()]));
  const startedItems: string[] = [];
  const passing = pass(items, scope, async (item) => {
    startedItems.push(item);
    await gates.get(item)?.promise;
  });
  await vi.waitFor(() => expect(startedItems).toEqual(['a', 'b']));
  gates.get('a')?.reject(new Error('of a'));
  gates.get('b')?.resolve();
  await expect(passing).rejects.toThrow('of a');
  expect(startedItems).toEqual(['a', 'b']);
});
