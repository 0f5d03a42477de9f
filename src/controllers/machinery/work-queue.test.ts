import { beforeEach, describe, expect, test } from 'vitest';
import { type Scope, silentLog } from '#base/log.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createWorkQueue, type WorkQueue, type WorkQueueOptions } from './work-queue.ts';

let clock: FakeClock;
let stop: AbortController;
let end: AbortController;

beforeEach(() => {
  clock = createFakeClock();
  stop = new AbortController();
  end = new AbortController();
});

const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

interface TestQueue {
  readonly queue: WorkQueue;
  /** Every key that a worker got, in order. */
  readonly startedKeys: string[];
  readonly now: Set<string>;
  finish(key: string): Promise<void>;
  readonly over: Promise<void>;
  /** Ends the work on a key at once, instead of when the test ends it. */
  work: ((key: string, scope: Scope) => Promise<void>) | undefined;
}

function startTestQueue(options: Partial<WorkQueueOptions> = {}): TestQueue {
  const queue = createWorkQueue({ clock, workers: 4, random: () => 1, ...options });
  const startedKeys: string[] = [];
  const now = new Map<string, () => void>();
  const scope = { signal: end.signal, log: silentLog() };
  const over = queue.run(
    async (key, given) => {
      startedKeys.push(key);
      if (it.work !== undefined) return await it.work(key, given);
      expect(now.has(key)).toBe(false);
      const { promise, resolve } = Promise.withResolvers<void>();
      now.set(key, resolve);
      await promise.finally(() => now.delete(key));
    },
    scope,
    stop.signal,
  );
  const it: TestQueue = {
    queue,
    startedKeys,
    over,
    work: undefined,
    get now() {
      return new Set(now.keys());
    },
    finish: async (key) => {
      now.get(key)?.();
      await settled();
    },
  };
  return it;
}

describe('a key', () => {
  test('added several times runs once', async () => {
    const it = startTestQueue();
    for (let i = 0; i < 5; i++) it.queue.add('a');
    await settled();
    await it.finish('a');
    expect(it.startedKeys).toEqual(['a']);
    expect(it.queue).toMatchObject({ waiting: 0, running: 0, delayed: 0 });
  });

  test('runs on one worker at a time, and again if it was added meanwhile', async () => {
    const it = startTestQueue();
    it.queue.add('a');
    await settled();
    it.queue.add('a');
    it.queue.add('a');
    await settled();
    expect(it.startedKeys).toEqual(['a']);
    await it.finish('a');
    expect(it.startedKeys).toEqual(['a', 'a']);
    await it.finish('a');
    expect(it.startedKeys).toEqual(['a', 'a']);
  });

  test('runs after the shortest requested delay', async () => {
    const it = startTestQueue();
    it.queue.addAfter('a', 5_000);
    it.queue.addAfter('a', 1_000);
    it.queue.addAfter('a', 9_000);
    expect(it.queue.delayed).toBe(1);
    clock.advance(999);
    await settled();
    expect(it.startedKeys).toEqual([]);
    clock.advance(1);
    await settled();
    expect(it.startedKeys).toEqual(['a']);
    await it.finish('a');
    clock.advance(10_000);
    await settled();
    expect(it.startedKeys).toEqual(['a']);
  });

  test('that was delayed runs at once when it is added', async () => {
    const it = startTestQueue();
    it.queue.addAfter('a', 5_000);
    it.queue.add('a');
    await settled();
    expect(it.startedKeys).toEqual(['a']);
    expect(it.queue.delayed).toBe(0);
  });

  test('whose delay ends while it is running runs again', async () => {
    const it = startTestQueue();
    it.queue.add('a');
    await settled();
    it.queue.addAfter('a', 1_000);
    clock.advance(1_000);
    await it.finish('a');
    expect(it.startedKeys).toEqual(['a', 'a']);
  });

  test('doubles its own backoff after each failure, up to a limit, and waits at least for the requested time', async () => {
    const waits: string[] = [];
    const timed: FakeClock['after'] = clock.after;
    clock.after = (ms, fire) => {
      waits.push(`${it.startedKeys.at(-1) ?? ''} ${ms}`);
      return timed(ms, fire);
    };
    const it = startTestQueue({ firstMs: 100, mostMs: 1_000 });
    it.work = (key) => Promise.resolve(it.queue.retry(key, key === 'c' ? 5_000 : 0));
    it.queue.add('a');
    for (let i = 0; i < 5; i++) {
      await settled();
      clock.advance(1_000);
    }
    await settled();
    expect(it.queue.failures('a')).toBe(6);
    it.work = (key) => Promise.resolve(it.queue.forget(key));
    clock.advance(1_000);
    await settled();
    expect(it.queue.failures('a')).toBe(0);
    it.work = (key) => Promise.resolve(it.queue.retry(key, key === 'c' ? 5_000 : 0));
    for (const key of ['a', 'c']) {
      it.queue.add(key);
      await settled();
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
    const it = startTestQueue();
    it.work = () => Promise.reject(new Error('a fault'));
    it.queue.add('a');
    await settled();
    expect(it.queue).toMatchObject({ running: 0, delayed: 1 });
    clock.advance(500);
    await settled();
    expect(it.startedKeys).toEqual(['a', 'a']);
  });

  test('that is done is forgotten', async () => {
    const it = startTestQueue();
    it.work = (key) => {
      it.queue.forget(key);
      return Promise.resolve();
    };
    for (let i = 0; i < 1_000; i++) it.queue.add(`k${i}`, `g${i}`);
    while (it.startedKeys.length < 1_000) await settled();
    await settled();
    expect(it.queue).toMatchObject({ waiting: 0, running: 0, delayed: 0 });
  });
});

describe('groups', () => {
  test('take turns', async () => {
    const it = startTestQueue({ workers: 1 });
    for (const key of ['a1', 'a2', 'a3', 'b1', 'b2', 'c1']) it.queue.add(key, key[0]);
    await settled();
    // Each group may have one worker in addition to the shared one.
    expect([...it.now]).toEqual(['a1', 'b1', 'c1']);
    await it.finish('a1');
    await it.finish('b1');
    await it.finish('c1');
    await it.finish('a2');
    expect(it.startedKeys).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3']);
  });

  test('cannot get all workers', async () => {
    const it = startTestQueue({ workers: 4, workersPerGroup: 2 });
    for (let i = 0; i < 5; i++) it.queue.add(`a${i}`, 'a');
    await settled();
    expect(it.now.size).toBe(2);
    for (let i = 0; i < 5; i++) it.queue.add(`b${i}`, 'b');
    await settled();
    expect([...it.now]).toEqual(['a0', 'a1', 'b0', 'b1']);
  });

  test('that hang, however many, do not delay other groups', async () => {
    const it = startTestQueue({ workers: 4, workersPerGroup: 2 });
    for (let g = 0; g < 20; g++) for (let i = 0; i < 3; i++) it.queue.add(`slow-${g}-${i}`, `slow-${g}`);
    await settled();
    it.queue.add('quick', 'quick');
    await settled();
    expect(it.now.has('quick')).toBe(true);
    // The number of workers and groups limits the running keys.
    expect(it.now.size).toBeLessThanOrEqual(4 + 21);
  });

  test('get a key that moves to them while it waits', async () => {
    const it = startTestQueue({ workers: 1 });
    it.queue.add('a1', 'a');
    it.queue.add('x', 'a');
    await settled();
    expect([...it.now]).toEqual(['a1']);
    it.queue.add('x', 'b');
    await settled();
    expect([...it.now]).toEqual(['a1', 'x']);
  });

  test('free the place of a key that moved to another group while it was running', async () => {
    const it = startTestQueue({ workers: 1 });
    it.queue.add('x', 'a');
    await settled();
    it.queue.add('x', 'b');
    it.queue.add('a1', 'a');
    await it.finish('x');
    expect(it.startedKeys).toEqual(['x', 'a1', 'x']);
  });
});

describe('the end', () => {
  test('lets running work finish, and starts nothing more', async () => {
    const it = startTestQueue({ workers: 1 });
    it.queue.add('a');
    it.queue.add('b');
    await settled();
    stop.abort();
    let isOver = false;
    const over = it.over.then(() => {
      isOver = true;
    });
    await settled();
    expect(isOver).toBe(false);
    await it.finish('a');
    await over;
    expect(it.startedKeys).toEqual(['a']);
  });

  test('aborts running work when the signal aborts', async () => {
    const it = startTestQueue();
    it.work = (_key, { signal }) =>
      new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    it.queue.add('a');
    await settled();
    end.abort();
    await it.over;
    expect(it.queue).toMatchObject({ running: 0, delayed: 0 });
  });
});
