import { setImmediate as turn } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createKeyedLock } from './keyed-lock.ts';

const neverAborted = new AbortController().signal;

/** Waits until pending promises have settled. */
const settle = async (): Promise<void> => {
  for (let n = 0; n < 5; n++) await turn();
};

describe('a keyed lock', () => {
  test('grants a free key at once', async () => {
    const lock = createKeyedLock();
    using _held = await lock.hold(['a'], neverAborted);
    expect(lock.size).toBe(1);
  });

  test('makes a second holder of the same key wait, but not one of another key', async () => {
    const lock = createKeyedLock();
    const first = await lock.hold(['a'], neverAborted);
    let isGranted = false;
    const second = lock.hold(['a'], neverAborted).then((held) => {
      isGranted = true;
      return held;
    });
    using _other = await lock.hold(['b'], neverAborted);
    await settle();
    expect(isGranted).toBe(false);
    first[Symbol.dispose]();
    using _second = await second;
    expect(isGranted).toBe(true);
  });

  test('grants a key in FIFO order', async () => {
    const lock = createKeyedLock();
    const order: number[] = [];
    const first = await lock.hold(['a'], neverAborted);
    const others = [1, 2, 3, 4].map(async (n) => {
      using _held = await lock.hold(['a'], neverAborted);
      order.push(n);
      await settle();
    });
    first[Symbol.dispose]();
    await Promise.all(others);
    expect(order).toEqual([1, 2, 3, 4]);
  });

  test('keeps no state when no caller holds or waits for a key', async () => {
    const lock = createKeyedLock();
    const holds = ['a', 'b', 'a', 'a'].map(async (key) => {
      using _held = await lock.hold([key, 'c'], neverAborted);
      await turn();
    });
    expect(lock.size).toBeGreaterThan(0);
    await Promise.all(holds);
    expect(lock.size).toBe(0);
  });

  test('acquires a key that is given twice only once', async () => {
    const lock = createKeyedLock();
    const held = await lock.hold(['a', 'a'], neverAborted);
    held[Symbol.dispose]();
    expect(lock.size).toBe(0);
  });

  test('is released only once if it is disposed of twice', async () => {
    const lock = createKeyedLock();
    const first = await lock.hold(['a'], neverAborted);
    first[Symbol.dispose]();
    using _second = await lock.hold(['a'], neverAborted);
    first[Symbol.dispose]();
    let isGranted = false;
    const controller = new AbortController();
    const third = lock.hold(['a'], controller.signal).then(() => {
      isGranted = true;
    });
    await settle();
    expect(isGranted).toBe(false);
    controller.abort();
    await expect(third).rejects.toThrow();
  });
});

describe('an aborted wait', () => {
  test("rejects at once with the signal's reason, but keeps its place in the queue until its turn", async () => {
    const lock = createKeyedLock();
    const first = await lock.hold(['a'], neverAborted);
    const controller = new AbortController();
    const abortedWait = lock.hold(['a'], controller.signal);
    let isGranted = false;
    const third = lock.hold(['a'], neverAborted).then((held) => {
      isGranted = true;
      return held;
    });
    const reason = new Error('enough');
    controller.abort(reason);
    await expect(abortedWait).rejects.toBe(reason);
    await settle();
    // The third must not overtake the first although the second, between them, left the queue.
    expect(isGranted).toBe(false);
    first[Symbol.dispose]();
    const held = await third;
    held[Symbol.dispose]();
    await settle();
    expect(lock.size).toBe(0);
  });

  test('releases the keys that it already holds', async () => {
    const lock = createKeyedLock();
    using _b = await lock.hold(['b'], neverAborted);
    const controller = new AbortController();
    const both = lock.hold(['a', 'b'], controller.signal);
    await settle();
    controller.abort();
    await expect(both).rejects.toThrow('aborted');
    using _a = await lock.hold(['a'], neverAborted);
  });

  test('does not start if the signal is already aborted', async () => {
    const lock = createKeyedLock();
    await expect(lock.hold(['a'], AbortSignal.abort(new Error('over')))).rejects.toThrow('over');
    expect(lock.size).toBe(0);
  });
});

test('with random callers and keys: one holder per key, no deadlock, and no state left', async () => {
  const caller = fc.record({
    keys: fc.array(fc.constantFrom('a', 'b', 'c', 'd'), { minLength: 1, maxLength: 4 }),
    turns: fc.nat(3),
    abortAfter: fc.option(fc.nat(6), { nil: undefined }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(caller, { minLength: 1, maxLength: 12 }), async (callers) => {
      const lock = createKeyedLock();
      const holders = new Map<string, number>();
      const addHolder = (keys: readonly string[], delta: number): void => {
        for (const key of new Set(keys)) holders.set(key, (holders.get(key) ?? 0) + delta);
        expect(Math.max(...holders.values())).toBeLessThanOrEqual(1);
      };
      const work = async ({ keys, turns, abortAfter }: (typeof callers)[number]): Promise<void> => {
        const controller = new AbortController();
        const aborting = (async () => {
          for (let n = 0; n < (abortAfter ?? 0); n++) await turn();
          if (abortAfter !== undefined) controller.abort(new Error('given up'));
        })();
        try {
          using _held = await lock.hold(keys, controller.signal);
          addHolder(keys, 1);
          for (let n = 0; n < turns; n++) await turn();
          addHolder(keys, -1);
        } catch (thrown) {
          expect(thrown).toMatchObject({ message: 'given up' });
        }
        await aborting;
      };
      await Promise.all(callers.map(work));
      await settle();
      expect(lock.size).toBe(0);
    }),
    { numRuns: 150 },
  );
});
