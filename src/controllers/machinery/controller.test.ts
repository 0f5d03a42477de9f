import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Scope, silentLog } from '#base/log.ts';
import { relayed, type StowageError } from '#core/errors.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { KubeError } from '#wire/kube/errors.ts';
import type { KubeObject } from '#wire/kube/types.ts';
import type { Cache, Handlers } from './cache.ts';
import { type Controller, type ControllerOptions, createController } from './controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './outcome.ts';

let clock: FakeClock;
let stop: AbortController;
let abort: AbortController;
let ended: Promise<void>;
let reconciled: string[];
let reconcile: (key: string, scope: Scope) => Promise<ReconcileDone | RequeueAfter>;

beforeEach(() => {
  clock = createFakeClock();
  stop = new AbortController();
  abort = new AbortController();
  ended = Promise.resolve();
  reconciled = [];
  reconcile = () => Promise.resolve(done);
});
afterEach(async () => {
  abort.abort();
  await ended;
});

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const scope = (): Scope => ({ signal: abort.signal, log: silentLog() });

function start(options: Partial<ControllerOptions> = {}, ...caches: Cache<KubeObject>[]): Controller {
  const controller = createController({
    name: 'test',
    clock,
    random: () => 0.5,
    reconcile: async (key, given) => {
      reconciled.push(key);
      return await reconcile(key, given);
    },
    ...options,
  });
  for (const cache of caches) controller.follow(cache);
  ended = controller.run(scope(), stop.signal);
  return controller;
}

const stowageErrorOf = (code: StowageError['code']): StowageError =>
  relayed('x', { code, reason: 'volume-unknown', action: 'y' });
const kubeRefusal = (status: number, reason = '', retryAfterMs = 0): KubeError =>
  new KubeError('x', { failure: 'refused', status, reason, retryAfterMs });

describe('the outcome of a reconcile', () => {
  const retryMs = 375; // Between 250 and 500.
  const terminalMs = 900_000;
  test.each<[string, () => Promise<ReconcileDone | RequeueAfter>, number | undefined, string]>([
    ['that is done', () => Promise.resolve(done), undefined, 'done'],
    ['that asks for a later run', () => Promise.resolve(requeueAfter(7_000)), 7_000, 'again'],
    ['whose store is down', () => Promise.reject(stowageErrorOf('unavailable')), retryMs, 'retried'],
    ['that another operation blocks', () => Promise.reject(stowageErrorOf('busy')), retryMs, 'retried'],
    ['that hits a bug', () => Promise.reject(new Error('a fault')), retryMs, 'retried'],
    ['of an invalid request', () => Promise.reject(stowageErrorOf('invalid')), terminalMs, 'terminal'],
    ['that lacks space', () => Promise.reject(stowageErrorOf('exhausted')), terminalMs, 'terminal'],
    ['whose object changed meanwhile', () => Promise.reject(kubeRefusal(409, 'Conflict')), retryMs, 'retried'],
    ['whose object already exists', () => Promise.reject(kubeRefusal(409, 'AlreadyExists')), retryMs, 'retried'],
    ['whose object is gone', () => Promise.reject(kubeRefusal(404, 'NotFound')), retryMs, 'retried'],
    ['that the API server forbids', () => Promise.reject(kubeRefusal(403, 'Forbidden')), retryMs, 'retried'],
    [
      'while the API server is busy',
      () => Promise.reject(kubeRefusal(429, 'TooManyRequests', 9_000)),
      9_000,
      'retried',
    ],
    ['while the API server fails', () => Promise.reject(kubeRefusal(500, 'InternalError')), retryMs, 'retried'],
    ['whose object the API server rejects', () => Promise.reject(kubeRefusal(422, 'Invalid')), terminalMs, 'terminal'],
    ['whose connection broke', () => Promise.reject(new KubeError('x', { failure: 'lost' })), retryMs, 'retried'],
  ])('%s', async (_what, work, afterMs, counter) => {
    reconcile = work;
    const failures: unknown[] = [];
    const controller = start({ onFailure: (_key, error) => failures.push(error) });
    controller.add('a');
    await settle();
    expect(controller.counts()).toMatchObject({ [counter]: 1, delayed: afterMs === undefined ? 0 : 1, running: 0 });
    expect(failures.length).toBe(counter === 'done' || counter === 'again' ? 0 : 1);
    if (afterMs === undefined) return;
    clock.advance(afterMs - 1);
    await settle();
    expect(reconciled).toEqual(['a']);
    clock.advance(1);
    await settle();
    expect(reconciled).toEqual(['a', 'a']);
  });

  test('that succeeds resets the backoff', async () => {
    let failures = 3;
    reconcile = () => (failures-- > 0 ? Promise.reject(stowageErrorOf('busy')) : Promise.resolve(done));
    const controller = start();
    controller.add('a');
    await settle();
    for (const wait of [375, 750, 1_500]) {
      clock.advance(wait);
      await settle();
    }
    expect(controller.counts()).toMatchObject({ retried: 3, done: 1, delayed: 0 });
    failures = 1;
    controller.add('a');
    await settle();
    clock.advance(375);
    await settle();
    expect(controller.counts()).toMatchObject({ retried: 4, done: 2 });
  });

  test('that is aborted is not a failure', async () => {
    reconcile = (_key, { signal }) =>
      new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    const failures: unknown[] = [];
    const controller = start({ onFailure: (_key, error) => failures.push(error) });
    controller.add('a');
    await settle();
    abort.abort();
    await ended;
    expect(failures).toEqual([]);
    expect(controller.counts()).toMatchObject({ retried: 0, terminal: 0, delayed: 0 });
  });
});

test('a group that hangs does not delay other groups', async () => {
  const { promise, resolve } = Promise.withResolvers<ReconcileDone>();
  reconcile = (key) => (key.startsWith('slow') ? promise : Promise.resolve(done));
  const controller = start({ workers: 2, groupOf: (key) => key.split('/')[0] ?? '' });
  for (let i = 0; i < 10; i++) controller.add(`slow/${i}`);
  for (let i = 0; i < 3; i++) controller.add(`quick/${i}`);
  await settle();
  expect(reconciled.filter((key) => key.startsWith('quick'))).toEqual(['quick/0', 'quick/1', 'quick/2']);
  resolve(done);
  await settle();
  expect(controller.counts().done).toBe(13);
});

describe('a controller that follows caches', () => {
  function cacheOf(...objects: KubeObject[]) {
    const sync = Promise.withResolvers<void>();
    let handlers: Handlers<KubeObject> = {};
    const cache = {
      whenSynced: (signal: AbortSignal) => {
        signal.addEventListener('abort', () => sync.reject(signal.reason));
        return sync.promise;
      },
      on: (registered: Handlers<KubeObject>) => {
        handlers = registered;
        for (const one of objects) registered.added?.(one);
        return { [Symbol.dispose]: () => undefined };
      },
    } as unknown as Cache<KubeObject>;
    return { cache, sync, notify: (call: (handlers: Handlers<KubeObject>) => void) => call(handlers) };
  }
  const object = (name: string, namespace = 'ns'): KubeObject => ({ metadata: { name, namespace } });

  test('waits until all caches are synced, then reconciles all objects', async () => {
    const [one, two] = [cacheOf(object('a')), cacheOf(object('b'))];
    start({}, one.cache, two.cache);
    one.sync.resolve();
    await settle();
    expect(reconciled).toEqual([]);
    two.sync.resolve();
    await settle();
    expect(reconciled).toEqual(['ns/a', 'ns/b']);
  });

  test('reconciles changed and deleted objects', async () => {
    const { cache, sync, notify } = cacheOf();
    sync.resolve();
    start({}, cache);
    await settle();
    notify((handlers) => handlers.changed?.(object('new'), object('old')));
    notify((handlers) => handlers.deleted?.(object('gone')));
    await settle();
    expect(reconciled).toEqual(['ns/old', 'ns/new', 'ns/gone']);
  });

  test('can be stopped before the caches are synced', async () => {
    const { cache } = cacheOf();
    start({}, cache);
    stop.abort();
    await ended;
  });
});
