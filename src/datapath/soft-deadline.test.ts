import { expect, test } from 'vitest';
import { unlessAborted } from '#base/aborted.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request, Statfs } from '#wire/fuse/operations.ts';
import { withSoftDeadline } from './soft-deadline.ts';

/** A file system that never answers, but ends interrupted requests. */
function createSilentFileSystem(softMs: number | undefined, ages: ReadonlyMap<number, number>) {
  const clock = createFakeClock();
  const statfs = (_node: number, { signal }: Request): Promise<Statfs> =>
    unlessAborted(new Promise<never>(() => undefined), signal).catch((cause: unknown) => {
      throw new Errno('EINTR', cause);
    });
  const operations = withSoftDeadline({ statfs }, { clock, softMs, requestAges: ages }) as Operations;
  const startRequest = (place: number, { signal }: AbortController = new AbortController()) => {
    const state = { code: 'waits' };
    const answer = operations.statfs(1, {
      uid: 0,
      gid: 0,
      pid: 1,
      slot: place,
      resent: false,
      signal,
    }) as Promise<Statfs>;
    answer.catch((cause: Errno) => {
      state.code = cause.code;
    });
    return state;
  };
  const advance = async (ms: number): Promise<void> => {
    clock.advance(ms);
    await new Promise(setImmediate);
  };
  return { ask: startRequest, pass: advance };
}

test('soft: a request of the predecessor has the rest of its time, and new requests are not affected', async () => {
  const ages = new Map([
    [3, 700],
    [4, 5_000],
  ]);
  const { ask, pass } = createSilentFileSystem(1_000, ages);
  const [before, long, other] = [ask(3), ask(4), ask(5)];
  ages.clear();
  const reusedPlace = ask(3);
  await pass(0);
  expect([before.code, long.code]).toEqual(['waits', 'EIO']);
  await pass(299);
  expect(before.code).toBe('waits');
  await pass(1);
  expect(before.code).toBe('EIO');
  await pass(100_000);
  expect([other.code, reusedPlace.code]).toEqual(['waits', 'waits']);
});

test('a request interrupted meanwhile fails with EINTR', async () => {
  const { ask, pass } = createSilentFileSystem(1_000, new Map([[3, 700]]));
  const interrupt = new AbortController();
  const state = ask(3, interrupt);
  interrupt.abort();
  await pass(0);
  expect(state.code).toBe('EINTR');
});

test('hard: there is no deadline', async () => {
  const { ask, pass } = createSilentFileSystem(undefined, new Map([[3, 700]]));
  const state = ask(3);
  await pass(100_000_000);
  expect(state.code).toBe('waits');
});
