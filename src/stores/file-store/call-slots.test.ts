import { describe, expect, test } from 'vitest';
import { createSlots } from './call-slots.ts';

const forever = new AbortController().signal;

describe('call slots', () => {
  test('are given out up to their number, then in the order of requests', async () => {
    const places = createSlots(2);
    const order: number[] = [];
    const first = await places.acquire(forever);
    const second = await places.acquire(forever);
    const later = [3, 4].map((who) =>
      places.acquire(forever).then((slot) => {
        order.push(who);
        return slot;
      }),
    );
    await Promise.resolve();
    expect(order).toEqual([]);
    second[Symbol.dispose]();
    const third = await later[0];
    expect(order).toEqual([3]);
    first[Symbol.dispose]();
    third?.[Symbol.dispose]();
    await later[1];
    expect(order).toEqual([3, 4]);
  });

  test('are not given to a caller whose signal aborted, and go to the next caller', async () => {
    const places = createSlots(1);
    const held = await places.acquire(forever);
    const impatient = new AbortController();
    const given = places.acquire(impatient.signal);
    const patient = places.acquire(forever);
    impatient.abort(new Error('enough'));
    await expect(given).rejects.toThrow('enough');
    await expect(places.acquire(impatient.signal)).rejects.toThrow('enough');
    held[Symbol.dispose]();
    (await patient)[Symbol.dispose]();
    // No slot was lost.
    (await places.acquire(forever))[Symbol.dispose]();
  });
});

test('a slot released during shared work goes to the next caller, and its owner gets one back before the callers that wait', async () => {
  const places = createSlots(1);
  const order: string[] = [];
  const lending = Promise.withResolvers<void>();
  const owner = async (): Promise<void> => {
    using _place = await places.acquire(forever);
    await places.releaseDuring(() => lending.promise);
    order.push('owner');
  };
  const working = owner();
  const borrower = await places.acquire(forever);
  const third = places.acquire(forever).then((slot) => {
    order.push('third');
    return slot;
  });
  lending.resolve();
  // Gives the owner time to come back if the slot were free.
  await new Promise(setImmediate);
  expect(order).toEqual([]);
  borrower[Symbol.dispose]();
  await working;
  (await third)[Symbol.dispose]();
  expect(order).toEqual(['owner', 'third']);
});
