import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createPoisonRequests } from './poison-requests.ts';

function createTestQueue() {
  const clock = createFakeClock();
  const started: number[] = [];
  let suspect: number | undefined;
  const poisonRequests = createPoisonRequests(clock, (place) => {
    suspect = place;
  });
  return { clock, poisonRequests, begun: started, add, state: () => ({ begun: [...started], marked: suspect }) };

  function add(...places: readonly number[]): void {
    for (const place of places) poisonRequests.add(place, () => void started.push(place));
  }
}

test('suspected requests are started one by one after all others, and recorded in the journal', () => {
  const { clock, poisonRequests, add, state } = createTestQueue();
  add(5, 6, 7);
  clock.advance(999);
  expect(state()).toEqual({ begun: [], marked: undefined });
  clock.advance(1);
  expect(state()).toEqual({ begun: [5], marked: 5 });
  // Its server is silent.
  clock.advance(1_000);
  expect(state()).toEqual({ begun: [5, 6], marked: 6 });
  poisonRequests.remove(6);
  expect(state()).toEqual({ begun: [5, 6], marked: undefined });
  clock.advance(0);
  expect(state()).toEqual({ begun: [5, 6, 7], marked: 7 });
  clock.advance(1_000);
  expect(state()).toEqual({ begun: [5, 6, 7], marked: undefined });
});

test('a request that is done before its turn is not started', () => {
  const { clock, poisonRequests, add, begun } = createTestQueue();
  add(5, 6);
  expect(poisonRequests.isWaiting(5)).toBe(true);
  poisonRequests.remove(5);
  expect(poisonRequests.isWaiting(5)).toBe(false);
  clock.advance(10_000);
  expect(begun).toEqual([6]);
  add(8);
  clock.advance(1_000);
  expect(begun).toEqual([6, 8]);
});
