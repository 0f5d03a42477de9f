import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { endsWithin, StillRunning, waitWithGrace } from './wait.ts';

const pendingForever = new Promise<never>(() => undefined);

test('waits for work that ends in time, also after an abort that the work respects', async () => {
  const clock = createFakeClock();
  using limit = clock.deadline(10, new AbortController().signal);
  const { promise, reject } = Promise.withResolvers<never>();
  limit.signal.addEventListener('abort', () => reject(new Error('heard it')));
  const waiting = waitWithGrace(promise, limit.signal, clock);
  clock.advance(10);
  await expect(waiting).rejects.toThrow('heard it');
  expect(await waitWithGrace(Promise.resolve(1), limit.signal, clock)).toBe(1);
});

test('gives up on work that ignores the abort, after a grace period', async () => {
  const clock = createFakeClock();
  using limit = clock.deadline(10, new AbortController().signal);
  const waiting = waitWithGrace(pendingForever, limit.signal, clock);
  clock.advance(10);
  clock.advance(2_000);
  await expect(waiting).rejects.toBeInstanceOf(StillRunning);
  const timedOut = waitWithGrace(pendingForever, limit.signal, clock);
  clock.advance(2_000);
  await expect(timedOut).rejects.toMatchObject({ cause: { name: 'DeadlineExceeded' } });
});

test('endsWithin tells whether work ends within the time', async () => {
  const clock = createFakeClock();
  expect(await endsWithin(Promise.resolve(), 10, clock)).toBe(true);
  expect(await endsWithin(Promise.reject(new Error('failed')), 10, clock)).toBe(true);
  const timedOut = endsWithin(pendingForever, 10, clock);
  clock.advance(10);
  expect(await timedOut).toBe(false);
});
