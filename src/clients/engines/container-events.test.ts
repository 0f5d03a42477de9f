import { beforeEach, expect, test, vi } from 'vitest';
import type { Facts, Log } from '#base/log.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import { DockerError } from '#wire/docker/errors.ts';
import type { EngineEvent } from '#wire/docker/events.ts';
import { followContainers } from './container-events.ts';

/** A stream of events that the test controls. */
interface Stream {
  readonly since: number | undefined;
  send(action: string, type?: string): void;
  end(): void;
  break(): void;
}

let clock: FakeClock;
let streams: Stream[];
let attempts: number;
let isReachable: boolean;
let logLines: string[];
let callbackCount: number;

beforeEach(() => {
  clock = createFakeClock();
  [streams, logLines] = [[], []];
  [attempts, callbackCount, isReachable] = [0, 0, true];
});

const events: DockerClient['events'] = async ({ since }, signal) => {
  attempts++;
  if (!isReachable) throw new DockerError('GET /events: connect ENOENT', { failure: 'unreachable' });
  const pendingEvents: (EngineEvent | Error | undefined)[] = [];
  let wake = Promise.withResolvers<void>();
  const push = (event: EngineEvent | Error | undefined): void => {
    pendingEvents.push(event);
    wake.resolve();
  };
  signal.addEventListener('abort', () => push(new DockerError('GET /events: cancelled', { failure: 'canceled' })));
  streams.push({
    since,
    send: (action, type = 'container') => push({ type, action, id: 'x', attributes: {} }),
    end: () => push(undefined),
    break: () => push(new DockerError('GET /events: the engine hung up', { failure: 'lost' })),
  });
  return (async function* (): AsyncGenerator<EngineEvent> {
    for (;;) {
      await wake.promise;
      wake = Promise.withResolvers();
      for (const event of pendingEvents.splice(0)) {
        if (event === undefined) return;
        if (event instanceof Error) throw event;
        yield event;
      }
    }
  })();
};

function follow(): AsyncDisposable {
  const record = (message: string, facts?: Facts): void => void logLines.push(`${message}: ${facts?.['why'] ?? ''}`);
  const log: Log = { debug: record, info: record, warn: record, error: record, with: () => log };
  return followContainers({ name: 'it', client: { events }, clock, log, changed: () => void callbackCount++ });
}

const waitForValue = (value: () => unknown, expected: unknown): Promise<void> =>
  vi.waitFor(() => expect(value()).toEqual(expected), { interval: 1 });
/** Runs everything that is already queued. */
const flushPendingWork = async (): Promise<void> => {
  for (let i = 0; i < 20; i++) await new Promise(setImmediate);
};

test('calls back at the start, and for all events that change containers', async () => {
  await using _ = follow();
  await waitForValue(() => callbackCount, 1);
  expect(streams[0]?.since).toBe(clock.now());
  for (const action of ['create', 'start', 'die', 'rename', 'destroy', 'remove']) streams[0]?.send(action);
  await waitForValue(() => callbackCount, 7);
  for (const action of [
    'exec_create: sh',
    'exec_start: sh',
    'exec_die',
    'health_status: healthy',
    'attach',
    'top',
    'resize',
  ])
    streams[0]?.send(action);
  streams[0]?.send('create', 'volume');
  streams[0]?.send('start');
  await waitForValue(() => callbackCount, 8);
  expect(logLines).toEqual([]);
});

test('reports an engine that is missing at the start once, and calls back when it answers', async () => {
  isReachable = false;
  await using _ = follow();
  await waitForValue(() => callbackCount, 1);
  for (let i = 0; i < 5; i++) {
    clock.advance(2_000);
    await waitForValue(() => attempts, i + 2);
    await flushPendingWork();
  }
  expect(callbackCount).toBe(1);
  isReachable = true;
  clock.advance(2_000);
  await waitForValue(() => callbackCount, 2);
  expect(logLines).toEqual([
    'lost the connection to a container engine: container engine it does not answer (GET /events: connect ENOENT)',
    'a container engine answers again: ',
  ]);
});

test.each(['end', 'break'] as const)('reopens a stream after its %s, and calls back', async (streamEnd) => {
  await using _ = follow();
  await waitForValue(() => callbackCount, 1);
  streams[0]?.[streamEnd]();
  await waitForValue(() => logLines.length, 1);
  await flushPendingWork();
  expect([callbackCount, attempts]).toEqual([1, 1]);
  clock.advance(200);
  await waitForValue(() => callbackCount, 2);
  streams[1]?.send('create');
  await waitForValue(() => callbackCount, 3);
  expect(logLines).toHaveLength(2);
});

/** Measures the wait before each attempt. */
async function measureBackoffs(failAttempt: () => Promise<void>, times: number): Promise<readonly number[]> {
  const backoffs: number[] = [];
  while (backoffs.length < times) {
    await failAttempt();
    await flushPendingWork();
    const attemptsBefore = attempts;
    let waited = 0;
    while (attempts === attemptsBefore) {
      clock.advance(100);
      waited += 100;
      await flushPendingWork();
    }
    backoffs.push(waited);
  }
  return backoffs;
}

test('retries a missing engine with a growing back-off, up to a limit', async () => {
  isReachable = false;
  await using _ = follow();
  await waitForValue(() => attempts, 1);
  expect(await measureBackoffs(async () => undefined, 7)).toEqual([200, 400, 800, 1_600, 2_000, 2_000, 2_000]);
});

test('backs off from an engine that always hangs up, but not from one that stayed connected for a while', async () => {
  await using _ = follow();
  await waitForValue(() => attempts, 1);
  const hangUp = async (): Promise<void> => streams.at(-1)?.break();
  expect(await measureBackoffs(hangUp, 6)).toEqual([200, 400, 800, 1_600, 2_000, 2_000]);
  clock.advance(2_001);
  expect(await measureBackoffs(hangUp, 2)).toEqual([100, 200]);
});

test.each([true, false])(
  'ends at once on disposal, also while it waits (engine reachable: %s)',
  async (isEngineReachable) => {
    isReachable = isEngineReachable;
    const following = follow();
    await waitForValue(() => attempts, 1);
    await flushPendingWork();
    const linesBefore = logLines.length;
    await following[Symbol.asyncDispose]();
    clock.advance(10_000);
    await flushPendingWork();
    expect([attempts, logLines.length]).toEqual([1, linesBefore]);
  },
);
