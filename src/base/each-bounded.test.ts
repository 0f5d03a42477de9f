import { describe, expect, test } from 'vitest';
import { eachBounded } from './each-bounded.ts';

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('eachBounded', () => {
  test('never exceeds the limit, and processes every item', async () => {
    let inFlight = 0;
    let maxInFlight = 0;
    const finishedItems: number[] = [];
    await eachBounded([1, 2, 3, 4, 5, 6, 7], 3, async (item) => {
      maxInFlight = Math.max(maxInFlight, ++inFlight);
      await nextTurn();
      inFlight--;
      finishedItems.push(item);
    });
    expect(maxInFlight).toBe(3);
    expect(finishedItems.toSorted()).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  test('throws the first failure after the running items have ended, and starts no more', async () => {
    const startedItems: number[] = [];
    const work = eachBounded([1, 2, 3, 4, 5, 6], 2, async (item) => {
      startedItems.push(item);
      await nextTurn();
      if (item === 1) throw new Error('one');
    });
    await expect(work).rejects.toThrow('one');
    expect(startedItems.length).toBeLessThan(6);
  });
});
