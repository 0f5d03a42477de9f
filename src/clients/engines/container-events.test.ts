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
let isThere: boolean;
let lines: string[];
let count: number;

beforeEach(() => {
  clock = createFakeClock();
  [streams, lines] = [[], []];
  [attempts, count, isThere] = [0, 0, true];
});

const events: DockerClient['events'] = async ({ since }, signal) => {
  attempts++;
  if (!isThere) throw new DockerError('GET /events: connect ENOENT', { failure: 'unreachable' });
  const waiting: (EngineEvent | Error | undefined)[] = [];
  let wake = Promise.withResolvers<void>();
  const push = (one: EngineEvent | Error | undefined): void => {
    waiting.push(one);
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
      for (const one of waiting.splice(0)) {
        if (one === undefined) return;
        if (one instanceof Error) throw one;
        yield one;
      }
    }
  })();
};

function follow(): AsyncDisposable {
  const keep = (message: string, facts?: Facts): void => void lines.push(`${message}: ${facts?.['why'] ?? ''}`);
  const log: Log = { debug: keep, info: keep, warn: keep, error: keep, with: () => log };
  return followContainers({ name: 'it', client: { events }, clock, log, changed: () => void count++ });
}

const becomes = (value: () => unknown, expected: unknown): Promise<void> =>
  vi.waitFor(() => expect(value()).toEqual(expected), { interval: 1 });
/** Lets everything settle that waits for nothing. */
const settled = async (): Promise<void> => {
  for (let i = 0; i < 20; i++) await new Promise(setImmediate);
};

test('calls back at the start, and for all events that change containers', async () => {
  await using _ = follow();
  await becomes(() => count, 1);
  expect(streams[0]?.since).toBe(clock.now());
  for (const action of ['create', 'start', 'die', 'rename', 'destroy', 'remove']) streams[0]?.send(action);
  await becomes(() => count, 7);
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
  await becomes(() => count, 8);
  expect(lines).toEqual([]);
});

test('reports an engine that is missing at the start once, and calls back when it is there', async () => {
  isThere = false;
  await using _ = follow();
  await becomes(() => count, 1);
  for (let i = 0; i < 5; i++) {
    clock.advance(2_000);
    await becomes(() => attempts, i + 2);
    await settled();
  }
  expect(count).toBe(1);
  isThere = true;
  clock.advance(2_000);
  await becomes(() => count, 2);
  expect(lines).toEqual([
    'lost the connection to a container engine: container engine it does not answer (GET /events: connect ENOENT)',
    'a container engine answers again: ',
  ]);
});

test.each(['end', 'break'] as const)('reopens a stream after its %s, and calls back', async (how) => {
  await using _ = follow();
  await becomes(() => count, 1);
  streams[0]?.[how]();
  await becomes(() => lines.length, 1);
  await settled();
  expect([count, attempts]).toEqual([1, 1]);
  clock.advance(200);
  await becomes(() => count, 2);
  streams[1]?.send('create');
  await becomes(() => count, 3);
  expect(lines).toHaveLength(2);
});

/** Measures the wait before each attempt. */
async function pauses(attempt: () => Promise<void>, times: number): Promise<readonly number[]> {
  const found: number[] = [];
  while (found.length < times) {
    await attempt();
    await settled();
    const before = attempts;
    let waited = 0;
    while (attempts === before) {
      clock.advance(100);
      waited += 100;
      await settled();
    }
    found.push(waited);
  }
  return found;
}

test('retries a missing engine with a growing back-off, up to a limit', async () => {
  isThere = false;
  await using _ = follow();
  await becomes(() => attempts, 1);
  expect(await pauses(async () => undefined, 7)).toEqual([200, 400, 800, 1_600, 2_000, 2_000, 2_000]);
});

test('backs off from an engine that always hangs up, but not from one that stayed connected for a while', async () => {
  await using _ = follow();
  await becomes(() => attempts, 1);
  const hangUp = async (): Promise<void> => streams.at(-1)?.break();
  expect(await pauses(hangUp, 6)).toEqual([200, 400, 800, 1_600, 2_000, 2_000]);
  clock.advance(2_001);
  expect(await pauses(hangUp, 2)).toEqual([100, 200]);
});

test.each([true, false])('ends at once on disposal, also while it waits (engine reachable: %s)', async (there) => {
  isThere = there;
  const following = follow();
  await becomes(() => attempts, 1);
  await settled();
  const before = lines.length;
  await following[Symbol.asyncDispose]();
  clock.advance(10_000);
  await settled();
  expect([attempts, lines.length]).toEqual([1, before]);
});
