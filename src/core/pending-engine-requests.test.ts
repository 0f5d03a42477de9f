import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { VolumeId } from './model.ts';
import { createPendingEngineRequests } from './pending-engine-requests.ts';

const id = 'sv1-00000000-0000-0000-0000-000000000000' as VolumeId;
const { signal } = new AbortController();

test('block waits until an engine with a recent request can have listed its container', async () => {
  const clock = createFakeClock();
  const requests = createPendingEngineRequests(clock);
  expect(await requests.note(id, signal)).toBe('noted');
  clock.advance(400);
  let isClosed = false;
  const closing = requests.block(id, false, signal).then((closed) => {
    isClosed = true;
    return closed;
  });
  clock.advance(599);
  await new Promise((resolve) => setImmediate(resolve));
  expect(isClosed).toBe(false);
  clock.advance(1);
  using _ = await closing;
});

test('block does not wait without a recent request, or if the engine itself deletes the volume', async () => {
  const clock = createFakeClock();
  const requests = createPendingEngineRequests(clock);
  (await requests.block(id, false, signal))[Symbol.dispose]();
  await requests.note(id, signal);
  (await requests.block(id, true, signal))[Symbol.dispose]();
  clock.advance(1_000);
  (await requests.block(id, false, signal))[Symbol.dispose]();
});

test('a request during a deletion waits for its end, and must then look the volume up again', async () => {
  const requests = createPendingEngineRequests(createFakeClock());
  const block = await requests.block(id, false, signal);
  const noted = requests.note(id, signal);
  const caller = new AbortController();
  const abortedNote = requests.note(id, caller.signal);
  caller.abort(new Error('enough'));
  await expect(abortedNote).rejects.toThrow('enough');
  block[Symbol.dispose]();
  expect(await noted).toBe('over');
  expect(await requests.note(id, signal)).toBe('noted');
});

test('an aborted block does not make requests wait', async () => {
  const requests = createPendingEngineRequests(createFakeClock());
  await requests.note(id, signal);
  const caller = new AbortController();
  const closing = requests.block(id, false, caller.signal);
  caller.abort(new Error('enough'));
  await expect(closing).rejects.toThrow();
  expect(await requests.note(id, signal)).toBe('noted');
});
