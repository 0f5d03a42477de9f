import { beforeEach, expect, test } from 'vitest';
import type { Scope } from '#base/log.ts';
import { silentLog } from '#base/log.ts';
import type { StoreName, Usage, Volume } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createUsageCounter, type UsageCounter } from './usage-counter.ts';

let clock: FakeClock;
let counter: UsageCounter;
/** The running counts; a test ends them. */
let runningCounts: (PromiseWithResolvers<Usage> & { readonly scope: Scope })[];

beforeEach(() => {
  clock = createFakeClock();
  runningCounts = [];
  const usage = (_volume: Volume, scope: Scope): Promise<Usage> => {
    const one = { ...Promise.withResolvers<Usage>(), scope };
    runningCounts.push(one);
    return one.promise;
  };
  counter = createUsageCounter({ volumes: { usageInBackground: usage }, clock, log: silentLog() });
});

const volume = (store = 'silver'): Volume => ({ id: newVolumeId(), store: store as StoreName }) as Volume;
const one = volume();
const counted = (bytes: bigint, complete = true): Usage => ({
  bytes,
  files: 1n,
  complete,
  empty: false,
  measuredAt: 1,
});
/** Lets pending promises settle. */
const settled = () => new Promise((resolve) => setImmediate(resolve));
async function asked(of = one, afterMs = 5_000): Promise<bigint | undefined> {
  const answer = counter.usageOf(of);
  await settled();
  clock.advance(afterMs);
  return (await answer)?.bytes;
}
async function ends(index: number, usage: Usage): Promise<void> {
  runningCounts[index]?.resolve(usage);
  await settled();
}

test('returns a quick count at once, and counts again each time', async () => {
  for (const bytes of [10n, 20n]) {
    const answer = counter.usageOf(one);
    await settled();
    await ends(runningCounts.length - 1, counted(bytes));
    expect((await answer)?.bytes).toBe(bytes);
  }
  expect(runningCounts).toHaveLength(2);
});

test('a slow count continues in the background and is returned later; a volume is counted once at a time', async () => {
  expect([await asked(), await asked()]).toEqual([undefined, undefined]);
  expect(runningCounts).toHaveLength(1);
  expect(runningCounts[0]?.scope.signal.aborted).toBe(false);
  await ends(0, counted(30n));
  expect(await asked()).toBe(30n);
});

test('after a slow count, waits before the next one and returns the old result until it expires', async () => {
  expect(await asked(one, 60_000)).toBeUndefined();
  await ends(0, counted(30n));
  expect(await asked(one, 239_000)).toBe(30n);
  expect(runningCounts).toHaveLength(1);
  clock.advance(2_000);
  expect(await asked()).toBe(30n);
  expect(runningCounts).toHaveLength(2);
  runningCounts[1]?.reject(new Error('the store is gone'));
  await settled();
  clock.advance(3_600_000);
  expect(await asked()).toBeUndefined();
});

test('gives up a count after ten minutes, and never returns an incomplete count', async () => {
  expect(await asked()).toBeUndefined();
  clock.advance(600_000);
  expect(runningCounts[0]?.scope.signal.aborted).toBe(true);
  await ends(0, counted(5n, false));
  expect(await asked()).toBeUndefined();
  expect(runningCounts).toHaveLength(1);
});

test('a slow store does not delay the counts of other stores', async () => {
  const many = Array.from({ length: 6 }, () => volume());
  const answers = many.map((each) => counter.usageOf(each));
  await settled();
  expect(runningCounts).toHaveLength(4);
  const other = counter.usageOf(volume('gold'));
  await settled();
  expect(runningCounts).toHaveLength(5);
  await ends(4, counted(7n));
  expect((await other)?.bytes).toBe(7n);
  await ends(0, counted(1n));
  expect(runningCounts).toHaveLength(6);
  clock.advance(5_000);
  await Promise.all(answers);
});

test('all counts end with the server, and no new one starts', async () => {
  expect(await asked()).toBeUndefined();
  counter.end();
  expect(runningCounts[0]?.scope.signal.aborted).toBe(true);
  runningCounts[0]?.reject(new Error('ended'));
  await settled();
  expect(await asked(volume())).toBeUndefined();
  expect(runningCounts).toHaveLength(1);
});
