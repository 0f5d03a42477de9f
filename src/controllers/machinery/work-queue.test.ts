import { beforeEach, describe, expect, test } from 'vitest';
import { type Scope, silentLog } from '#base/log.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createWorkQueue, type WorkQueue, type WorkQueueOptions } from './work-queue.ts';

let clock: FakeClock;
let stop: AbortController;
let abort: AbortController;

beforeEach(() => {
  clock = createFakeClock();
  stop = new AbortController();
  abort = new AbortController();
});

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

interface TestQueue {
  readonly queue: WorkQueue;
  /** Every key that a worker got, in order. */
  readonly startedKeys: string[];
  readonly runningKeys: Set<string>;
  finish(key: string): Promise<void>;
  readonly ended: Promise<void>;
  /** Replaces the work on a key, which otherwise lasts until the test calls `finish`. */
  work: ((key: string, scope: Scope) => Promise<void>) | undefined;
}

function startTestQueue(options: Partial<WorkQueueOptions> = {}): TestQueue {
  const queue = createWorkQueue({ clock, workers: 4, random: () => 1, ...options });
  const startedKeys: string[] = [];
  const finishers = new Map<string, () => void>();
  const scope = { signal: abort.signal, log: silentLog() };
  const ended = queue.run(
    async (key, given) => {
      startedKeys.push(key);
      if (testQueue.work !== undefined) return await testQueue.work(key, given);
      expect(finishers.has(key)).toBe(false);
      const { promise, resolve } = Promise.withResolvers<void>();
      finishers.set(key, resolve);
      await promise.finally(() => finishers.delete(key));
    },
    scope,
    stop.signal,
  );
  const testQueue: TestQueue = {
    queue,
    startedKeys,
    ended,
    work: undefined,
    get runningKeys() {
      return new Set(finishers.keys());
    },
    finish: async (key) => {
      finishers.get(key)?.();
      await settle();
    },
  };
  return testQueue;
}

describe('a key', () => {
  test('added several times runs once', async () => {
    const testQueue = startTestQueue();
    for (let i = 0; i < 5; i++) testQueue.queue.add('a');
    await settle();
    await testQueue.finish('a');
    expect(testQueue.startedKeys).toEqual(['a']);
    expect(testQueue.queue).toMatchObject({ waiting: 0, running: 0, delayed: 0 });
  });

  test('runs on one worker at a time, and again if it was added meanwhile', async () => {
    const testQueue = startTestQueue();
    testQueue.queue.add('a');
    await settle();
    testQueue.queue.add('a');
    testQueue.queue.add('a');
    await settle();
    expect(testQueue.startedKeys).toEqual(['a']);
    await testQueue.finish('a');
    expect(testQueue.startedKeys).toEqual(['a', 'a']);
    await testQueue.finish('a');
    expect(testQueue.startedKeys).toEqual(['a', 'a']);
  });

  test('runs after the shortest requested delay', async () => {
    const testQueue = startTestQueue();
    testQueue.queue.addAfter('a', 5_000);
    testQueue.queue.addAfter('a', 1_000);
    testQueue.queue.addAfter('a', 9_000);
    expect(testQueue.queue.delayed).toBe(1);
    clock.advance(999);
    await settle();
    expect(testQueue.startedKeys).toEqual([]);
    clock.advance(1);
    await settle();
    expect(testQueue.startedKeys).toEqual(['a']);
    await testQueue.finish('a');
    clock.advance(10_000);
    await settle();
    expect(testQueue.startedKeys).toEqual(['a']);
  });

  test('that was delayed runs at once when it is added', async () => {
    const testQueue = startTestQueue();
    testQueue.queue.addAfter('a', 5_000);
    testQueue.queue.add('a');
    await settle();
    expect(testQueue.startedKeys).toEqual(['a']);
    expect(testQueue.queue.delayed).toBe(0);
  });

  test('whose delay ends while it is running runs again', async () => {
    const testQueue = startTestQueue();
    testQueue.queue.add('a');
    await settle();
    testQueue.queue.addAfter('a', 1_000);
    clock.advance(1_000);
    await testQueue.finish('a');
    expect(testQueue.startedKeys).toEqual(['a', 'a']);
  });

  test('doubles its own backoff after each failure, up to a limit, and waits at least for the requested time', async () => {
    const waits: string[] = [];
    const realAfter: FakeClock['after'] = clock.after;
    clock.after = (ms, fire) => {
      waits.push(`${testQueue.startedKeys.at(-1) ?? ''} ${ms}`);
      return realAfter(ms, fire);
    };
    const testQueue = startTestQueue({ firstMs: 100, mostMs: 1_000 });
    testQueue.work = (key) => Promise.resolve(testQueue.queue.retry(key, key === 'c' ? 5_000 : 0));
    testQueue.queue.add('a');
    for (let i = 0; i < 5; i++) {
      await settle();
      clock.advance(1_000);
    }
    await settle();
    expect(testQueue.queue.failures('a')).toBe(6);
    testQueue.work = (key) => Promise.resolve(testQueue.queue.forget(key));
    clock.advance(1_000);
    await settle();
    expect(testQueue.queue.failures('a')).toBe(0);
    testQueue.work = (key) => Promise.resolve(testQueue.queue.retry(key, key === 'c' ? 5_000 : 0));
    for (const key of ['a', 'c']) {
      testQueue.queue.add(key);
      await settle();
    }
    expect(waits).toEqual(['a 100', 'a 200', 'a 400', 'a 800', 'a 1000', 'a 1000', 'a 100', 'c 5000']);
  });

  test('has jitter in its backoff', () => {
    const waits = new Set<number>();
    clock.after = (ms) => {
      waits.add(ms);
      return { [Symbol.dispose]: () => undefined };
    };
    const queue = createWorkQueue({ clock, workers: 1, firstMs: 100 });
    for (let i = 0; i < 50; i++) queue.retry(`k${i}`, 0);
    expect(waits.size).toBeGreaterThan(40);
    expect(Math.min(...waits)).toBeGreaterThanOrEqual(50);
    expect(Math.max(...waits)).toBeLessThanOrEqual(100);
  });

  test('whose worker throws is retried', async () => {
    const testQueue = startTestQueue();
    testQueue.work = () => Promise.reject(new Error('a fault'));
    testQueue.queue.add('a');
    await settle();
    expect(testQueue.queue).toMatchObject({ running: 0, delayed: 1 });
    clock.advance(500);
    await settle();
    expect(testQueue.startedKeys).toEqual(['a', 'a']);
  });

  test('that is done is forgotten', async () => {
    const testQueue = startTestQueue();
    testQueue.work = (key) => {
      testQueue.queue.forget(key);
      return Promise.resolve();
    };
    for (let i = 0; i < 1_000; i++) testQueue.queue.add(`k${i}`, `g${i}`);
    while (testQueue.startedKeys.length < 1_000) await settle();
    await settle();
    expect(testQueue.queue).toMatchObject({ waiting: 0, running: 0, delayed: 0 });
  });
});

describe('groups', () => {
  test('take turns', async () => {
    const testQueue = startTestQueue({ workers: 1 });
    for (const key of ['a1', 'a2', 'a3', 'b1', 'b2', 'c1']) testQueue.queue.add(key, key[0]);
    await settle();
    // Each group may have one worker in addition to the shared one.
    expect([...testQueue.runningKeys]).toEqual(['a1', 'b1', 'c1']);
    await testQueue.finish('a1');
    await testQueue.finish('b1');
    await testQueue.finish('c1');
    await testQueue.finish('a2');
    expect(testQueue.startedKeys).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3']);
  });

  test('cannot get all workers', async () => {
    const testQueue = startTestQueue({ workers: 4, workersPerGroup: 2 });
    for (let i = 0; i < 5; i++) testQueue.queue.add(`a${i}`, 'a');
    await settle();
    expect(testQueue.runningKeys.size).toBe(2);
    for (let i = 0; i < 5; i++) testQueue.queue.add(`b${i}`, 'b');
    await settle();
    expect([...testQueue.runningKeys]).toEqual(['a0', 'a1', 'b0', 'b1']);
  });

  test('that hang do not delay other groups, however many hang', async () => {
    const testQueue = startTestQueue({ workers: 4, workersPerGroup: 2 });
    for (let g = 0; g < 20; g++) for (let i = 0; i < 3; i++) testQueue.queue.add(`slow-${g}-${i}`, `slow-${g}`);
    await settle();
    testQueue.queue.add('quick', 'quick');
    await settle();
    expect(testQueue.runningKeys.has('quick')).toBe(true);
    // The number of workers and groups limits the running keys.
    expect(testQueue.runningKeys.size).toBeLessThanOrEqual(4 + 21);
  });

  test('receive a key that moves to them while it waits', async () => {
    const testQueue = startTestQueue({ workers: 1 });
    testQueue.queue.add('a1', 'a');
    testQueue.queue.add('x', 'a');
    await settle();
    expect([...testQueue.runningKeys]).toEqual(['a1']);
    testQueue.queue.add('x', 'b');
    await settle();
    expect([...testQueue.runningKeys]).toEqual(['a1', 'x']);
  });

  test('free the worker of a key that moved to another group while it was running', async () => {
    const testQueue = startTestQueue({ workers: 1 });
    testQueue.queue.add('x', 'a');
    await settle();
    testQueue.queue.add('x', 'b');
    testQueue.queue.add('a1', 'a');
    await testQueue.finish('x');
    expect(testQueue.startedKeys).toEqual(['x', 'a1', 'x']);
  });
});

describe('the end of the queue', () => {
  test('lets running work finish, and starts nothing more', async () => {
    const testQueue = startTestQueue({ workers: 1 });
    testQueue.queue.add('a');
    testQueue.queue.add('b');
    await settle();
    stop.abort();
    let isOver = false;
    const ending = testQueue.ended.then(() => {
      isOver = true;
    });
    await settle();
    expect(isOver).toBe(false);
    await testQueue.finish('a');
    await ending;
    expect(testQueue.startedKeys).toEqual(['a']);
  });

  test('aborts running work when the signal aborts', async () => {
    const testQueue = startTestQueue();
    testQueue.work = (_key, { signal }) =>
      new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    testQueue.queue.add('a');
    await settle();
    abort.abort();
    await testQueue.ended;
    expect(testQueue.queue).toMatchObject({ running: 0, delayed: 0 });
  });
});
