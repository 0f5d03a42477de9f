import { EventEmitter } from 'node:events';
import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { DeadlineExceeded } from './clock.ts';
import { openStream } from './open-stream.ts';

const notAnError = new Error('never');
const failureOf = (thrown: unknown, signal: AbortSignal): Error =>
  signal.aborted ? (signal.reason as Error) : thrown instanceof Error ? thrown : notAnError;

function startOpening() {
  const clock = createFakeClock();
  const parent = new AbortController();
  const head = Promise.withResolvers<EventEmitter>();
  let streamSignal: AbortSignal | undefined;
  const open = (signal: AbortSignal): Promise<EventEmitter> => {
    streamSignal = signal;
    signal.addEventListener('abort', () => head.reject(signal.reason), { once: true });
    return head.promise;
  };
  const opening = openStream({ clock, limitMs: 1_000, open, failureOf }, parent.signal);
  return { clock, parent, head, opening, signal: () => streamSignal };
}

test('opening has a deadline', async () => {
  const { clock, opening } = startOpening();
  clock.advance(1_000);
  await expect(opening).rejects.toBeInstanceOf(DeadlineExceeded);
});

test('an open stream lives until the signal is aborted', async () => {
  const { clock, parent, head, opening, signal } = startOpening();
  const stream = new EventEmitter();
  head.resolve(stream);
  expect(await opening).toBe(stream);
  clock.advance(1_000_000);
  expect(signal()?.aborted).toBe(false);
  const why = new Error('enough');
  parent.abort(why);
  expect(signal()?.reason).toBe(why);
});

test('a stream that has ended is not aborted', async () => {
  const { parent, head, opening, signal } = startOpening();
  const stream = new EventEmitter();
  head.resolve(stream);
  await opening;
  stream.emit('close');
  parent.abort();
  expect(signal()?.aborted).toBe(false);
});

test('does not open if the caller has already aborted', async () => {
  const { parent, opening } = startOpening();
  const why = new Error('gone');
  parent.abort(why);
  await expect(opening).rejects.toBe(why);
});

test('converts errors with failureOf', async () => {
  const { head, opening } = startOpening();
  head.reject('a text');
  await expect(opening).rejects.toBe(notAnError);
});
