import { describe, expect, test } from 'vitest';
import { eachBounded } from './each-bounded.ts';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('bounded work', () => {
  test('never exceeds the limit, and processes every item', async () => {
    let inFlight = 0;
    let most = 0;
    const done: number[] = [];
    await eachBounded([1, 2, 3, 4, 5, 6, 7], 3, async (item) => {
      most = Math.max(most, ++inFlight);
      await turn();
      inFlight--;
      done.push(item);
    });
    expect(most).toBe(3);
    expect(done.toSorted()).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  test('throws the first failure after the running items have ended, and starts no more', async () => {
    const begun: number[] = [];
    const work = eachBounded([1, 2, 3, 4, 5, 6], 2, async (item) => {
      begun.push(item);
      await turn();
      if (item === 1) throw new Error('one');
    });
    await expect(work).rejects.toThrow('one');
    expect(begun.length).toBeLessThan(6);
  });
});
