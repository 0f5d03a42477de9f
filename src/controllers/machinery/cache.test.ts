import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Facts, type Log, silentLog } from '#base/log.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createWaitedClock, type WaitedClock } from '#testing/kube-clock.ts';
import { usedMemoryMib } from '#testing/memory.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume } from '#wire/kube/types.ts';
import { type Cache, type CacheOptions, createCache, identityOf } from './cache.ts';

interface TrimmedVolume extends KubeObject {
  readonly handle: string;
}

const path = '/api/v1/persistentvolumes';
let api: FakeKubeApi;
let client: KubeClient;
let clock: WaitedClock;
let stop: AbortController;
let running: Promise<void>[];

beforeEach(async () => {
  api = await startKubeApi();
  clock = createWaitedClock();
  stop = new AbortController();
  running = [];
  client = createKubeClient({ access: api.access, clock, userAgent: 'x', random: () => 1 });
});
afterEach(async () => {
  stop.abort();
  await Promise.all(running);
  client[Symbol.dispose]();
  await api[Symbol.asyncDispose]();
});

const volume = (name: string, handle = name, more: object = {}) => ({
  metadata: { name, managedFields: 'x'.repeat(100), ...more },
  spec: { csi: { driver: 'file.stowage.dev', volumeHandle: handle } },
});

function trim(full: PersistentVolume): TrimmedVolume | undefined {
  const handle = full.spec.csi?.volumeHandle;
  return handle === undefined ? undefined : { metadata: identityOf(full), handle };
}

function start(
  options: Partial<CacheOptions<PersistentVolume, TrimmedVolume>> = {},
  log: Log = silentLog(),
): { readonly cache: Cache<TrimmedVolume>; readonly changes: string[] } {
  const indexes = { handle: (object: TrimmedVolume) => [object.handle] };
  const cache = createCache({
    client,
    resource: persistentVolumes,
    trim,
    indexes,
    clock,
    random: () => 1,
    ...options,
  });
  const changes: string[] = [];
  cache.on({
    added: ({ metadata }) => changes.push(`added ${metadata.name ?? ''}`),
    changed: ({ metadata, handle }, before) =>
      changes.push(`changed ${metadata.name ?? ''}: ${before.handle} → ${handle}`),
    deleted: ({ metadata }) => changes.push(`deleted ${metadata.name ?? ''}`),
  });
  running.push(cache.run({ signal: stop.signal, log }));
  return { cache, changes };
}
const listCount = (): number =>
  api.requests.filter((one) => !one.includes('watch=true') && !one.includes('continue=')).length;

describe('a cache', () => {
  test('contains the listed objects, and then follows changes', async () => {
    api.put(path, volume('a'));
    const { cache, changes } = start();
    expect(cache.synced).toBe(false);
    await cache.whenSynced(stop.signal);
    expect(cache.synced).toBe(true);
    api.put(path, volume('b'));
    api.put(path, volume('a', 'other'));
    api.remove(path, 'b');
    await expect.poll(() => changes).toEqual(['added a', 'added b', 'changed a: a → other', 'deleted b']);
    expect(cache.size).toBe(1);
  });

  test('keeps only the trimmed objects', async () => {
    const { uid, resourceVersion } = api.put(path, volume('a')).metadata;
    const { cache } = start();
    await cache.whenSynced(stop.signal);
    expect([...cache.all()]).toEqual([{ metadata: { name: 'a', uid, resourceVersion }, handle: 'a' }]);
  });

  test('does not keep trimmed fields in memory, from lists and watches', async () => {
    const heavy = (name: string) => ({ ...volume(name), status: { message: name.repeat(5_000) } });
    for (let i = 0; i < 500; i++) api.put(path, heavy(`v${1_000 + i}`));
    const before = usedMemoryMib();
    const { cache } = start({ pageSize: 100 });
    await cache.whenSynced(stop.signal);
    await expect.poll(() => api.watches).toBe(1);
    // The cache has read 12 MB.
    await expect.poll(() => usedMemoryMib() - before).toBeLessThan(3);
    for (let i = 0; i < 200; i++) api.put(path, heavy(`w${1_000 + i}`));
    const memoryBefore = usedMemoryMib();
    await expect.poll(() => cache.size).toBe(700);
    // Node frees the buffers of the sockets a moment later.
    await expect.poll(() => usedMemoryMib() - memoryBefore).toBeLessThan(3);
  });

  test('ignores objects for which trim() returns undefined, and reports a cached object as deleted when it does', async () => {
    api.put(path, { metadata: { name: 'foreign' }, spec: {} });
    const { cache, changes } = start();
    await cache.whenSynced(stop.signal);
    api.put(path, volume('a'));
    api.put(path, { metadata: { name: 'a' }, spec: {} });
    await expect.poll(() => changes).toEqual(['added a', 'deleted a']);
    expect(cache.size).toBe(0);
  });

  test('lists in pages', async () => {
    for (let i = 0; i < 7; i++) api.put(path, volume(`v${i}`));
    const { cache } = start({ pageSize: 3 });
    await cache.whenSynced(stop.signal);
    expect(cache.size).toBe(7);
    expect(api.requests.filter((one) => one.includes('limit=3')).length).toBe(3);
  });

  test('finds objects by the current values of an index', async () => {
    api.put(path, volume('a', 'h'));
    api.put(path, volume('b', 'h'));
    const { cache, changes } = start();
    await cache.whenSynced(stop.signal);
    const names = (handle: string) => cache.byIndex('handle', handle).map(({ metadata }) => metadata.name);
    expect(names('h')).toEqual(['a', 'b']);
    api.put(path, volume('a', 'i'));
    api.remove(path, 'b');
    await expect.poll(() => changes.length).toBe(4);
    expect([names('h'), names('i'), names('j')]).toEqual([[], ['a'], []]);
    expect(() => cache.byIndex('nothing', 'x')).toThrow('there is no index “nothing”');
  });

  test('calls handlers that are registered later for the existing objects', async () => {
    api.put(path, volume('a'));
    const { cache } = start();
    await cache.whenSynced(stop.signal);
    const addedHandles: string[] = [];
    const subscription = cache.on({ added: ({ handle }) => addedHandles.push(handle) });
    expect(addedHandles).toEqual(['a']);
    subscription[Symbol.dispose]();
    const other = start();
    api.put(path, volume('b'));
    await expect.poll(() => other.changes).toContain('added b');
    await expect.poll(() => cache.size).toBe(2);
    expect(addedHandles).toEqual(['a']);
  });

  test('continues when a handler throws', async () => {
    const errors: Facts[] = [];
    const log: Log = { ...silentLog(), error: (_message, facts = {}) => errors.push(facts) };
    const { cache, changes } = start({}, log);
    cache.on({
      added: () => {
        throw new Error('a fault');
      },
    });
    await cache.whenSynced(stop.signal);
    api.put(path, volume('a'));
    api.put(path, volume('b'));
    await expect.poll(() => changes).toEqual(['added a', 'added b']);
    expect(errors.length).toBe(2);
  });

  test('reports a recreated object of the same name as a deletion and an addition', async () => {
    const { cache, changes } = start();
    await cache.whenSynced(stop.signal);
    api.put(path, volume('a'));
    await expect.poll(() => changes).toEqual(['added a']);
    await api.down();
    api.remove(path, 'a');
    api.compact();
    api.put(path, volume('a'));
    await api.up();
    await clock.passWhenAsleep(10_000);
    await clock.passWhenAsleep(10_000);
    await expect.poll(() => changes).toEqual(['added a', 'deleted a', 'added a']);
  });
});

describe('when a watch ends', () => {
  test('the cache lists again, and reports only the missed changes', async () => {
    for (const name of ['stays', 'changes', 'goes']) api.put(path, volume(name));
    const { cache, changes } = start({ pageSize: 2 });
    await cache.whenSynced(stop.signal);
    await expect.poll(() => api.watches).toBe(1);
    changes.length = 0;
    await api.down();
    api.remove(path, 'goes');
    api.put(path, volume('changes', 'new'));
    api.put(path, volume('comes'));
    api.compact();
    await api.up();
    await clock.passWhenAsleep(10_000);
    await clock.passWhenAsleep(10_000);
    await expect
      .poll(() => [...changes].sort())
      .toEqual(['added comes', 'changed changes: changes → new', 'deleted goes']);
    expect(listCount()).toBe(2);
    // The next watch starts at the version of the list.
    await expect.poll(() => api.watches).toBe(1);
    api.put(path, volume('later'));
    await expect.poll(() => changes).toContain('added later');
  });

  test('the cache backs off when lists expire at once', async () => {
    api.put(path, volume('a'));
    const { cache } = start();
    api.intercept = (request, response) => {
      if (request.url?.includes('watch=true') !== true) return false;
      api.refuse(response, 410, 'Expired');
      return true;
    };
    await cache.whenSynced(stop.signal);
    for (let i = 1; i <= 4; i++) {
      await expect.poll(() => clock.slept.length).toBe(i);
      clock.advance(15_000);
    }
    await expect.poll(() => clock.slept).toEqual([500, 1_000, 2_000, 4_000, 8_000]);
  });

  test('the cache restarts a list that expires between pages', async () => {
    for (let i = 0; i < 4; i++) api.put(path, volume(`v${i}`));
    let isFirst = true;
    api.intercept = (request) => {
      if (request.url?.includes('continue=') === true && isFirst) {
        isFirst = false;
        api.remove(path, 'v0');
        api.compact();
      }
      return false;
    };
    const { cache, changes } = start({ pageSize: 2 });
    await clock.passWhenAsleep(500);
    await cache.whenSynced(stop.signal);
    expect([...cache.all()].map(({ handle }) => handle)).toEqual(['v1', 'v2', 'v3']);
    expect(changes).toEqual(['added v0', 'added v1', 'added v2', 'added v3', 'deleted v0']);
  });
});

describe('while the API server is away', () => {
  test('for 30 seconds, the cache stays readable, reports the last contact, and misses nothing', async () => {
    api.put(path, volume('a'));
    const { cache, changes } = start();
    await expect.poll(() => api.watches).toBe(1);
    const { lastContactAt: contactAt } = cache;
    await api.down();
    await expect.poll(() => clock.slept.length).toBe(1);
    while (clock.elapsed() < 30_000) {
      const times = clock.slept.length;
      clock.advance(clock.slept.at(-1) ?? 0);
      await expect.poll(() => clock.slept.length).toBe(times + 1);
      expect(cache.get('a')).toBeDefined();
      expect(cache.synced).toBe(true);
    }
    expect(clock.elapsed() - cache.lastContactAt).toBeGreaterThanOrEqual(30_000);
    expect(cache.lastContactAt).toBe(contactAt);
    api.put(path, volume('b'));
    await api.up();
    await clock.passWhenAsleep(10_000);
    await expect.poll(() => changes).toEqual(['added a', 'added b']);
    expect(listCount()).toBe(1);
  });

  test('at start-up, the cache syncs when the API server comes up', async () => {
    await api.down();
    const { cache } = start();
    await clock.passWhenAsleep(500);
    await expect.poll(() => clock.slept).toEqual([500, 1_000]);
    expect(cache.synced).toBe(false);
    await api.up();
    clock.advance(1_000);
    await cache.whenSynced(stop.signal);
  });

  test.each([
    [429, 'TooManyRequests', 33_000],
    [500, 'InternalError', 500],
    [403, 'Forbidden', 500],
  ])('or answers with %d, the cache waits for the requested time, or backs off', async (code, reason, wait) => {
    let isFirst = true;
    api.intercept = (_request, response) => {
      if (!isFirst) return false;
      isFirst = false;
      api.refuse(response, code, reason, code === 429 ? { headers: { 'retry-after': '33' } } : {});
      return true;
    };
    const { cache } = start();
    await expect.poll(() => clock.slept).toEqual([wait]);
    clock.advance(wait);
    await cache.whenSynced(stop.signal);
  });

  test('a wait for the sync can be aborted', async () => {
    await api.down();
    const { cache } = start();
    const waiter = new AbortController();
    const synced = cache.whenSynced(waiter.signal);
    waiter.abort(new Error('enough'));
    await expect(synced).rejects.toThrow('enough');
  });
});
