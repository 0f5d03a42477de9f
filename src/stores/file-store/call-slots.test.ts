import { describe, expect, test } from 'vitest';
import { createSlots } from './call-slots.ts';

const neverAborted = new AbortController().signal;

describe('call slots', () => {
  test('are granted up to their number, then in FIFO order', async () => {
    const slots = createSlots(2);
    const order: number[] = [];
    const first = await slots.acquire(neverAborted);
    const second = await slots.acquire(neverAborted);
    const queuedAcquires = [3, 4].map((caller) =>
      slots.acquire(neverAborted).then((slot) => {
        order.push(caller);
        return slot;
      }),
    );
    await Promise.resolve();
    expect(order).toEqual([]);
    second[Symbol.dispose]();
    const third = await queuedAcquires[0];
    expect(order).toEqual([3]);
    first[Symbol.dispose]();
    third?.[Symbol.dispose]();
    await queuedAcquires[1];
    expect(order).toEqual([3, 4]);
  });

  test('are granted to the next caller if a queued caller aborts', async () => {
    const slots = createSlots(1);
    const held = await slots.acquire(neverAborted);
    const controller = new AbortController();
    const abortedAcquire = slots.acquire(controller.signal);
    const nextAcquire = slots.acquire(neverAborted);
    controller.abort(new Error('enough'));
    await expect(abortedAcquire).rejects.toThrow('enough');
    await expect(slots.acquire(controller.signal)).rejects.toThrow('enough');
    held[Symbol.dispose]();
    (await nextAcquire)[Symbol.dispose]();
    // No slot was lost.
    (await slots.acquire(neverAborted))[Symbol.dispose]();
  });
});

test('releaseDuring() lends the slot to the next caller, and its owner gets a slot back before the queued callers', async () => {
  const slots = createSlots(1);
  const order: string[] = [];
  const sharedWork = Promise.withResolvers<void>();
  const owner = async (): Promise<void> => {
    using _slot = await slots.acquire(neverAborted);
    await slots.releaseDuring(() => sharedWork.promise);
    order.push('owner');
  };
  const working = owner();
  const borrowedSlot = await slots.acquire(neverAborted);
  const third = slots.acquire(neverAborted).then((slot) => {
    order.push('third');
    return slot;
  });
  sharedWork.resolve();
  // Gives the owner time to come back if the slot were free.
  await new Promise(setImmediate);
  expect(order).toEqual([]);
  borrowedSlot[Symbol.dispose]();
  await working;
  (await third)[Symbol.dispose]();
  expect(order).toEqual(['owner', 'third']);
});
