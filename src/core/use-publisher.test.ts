import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import { openRecords } from '#records/sqlite.ts';
import { scope } from '#testing/contracts/store.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import type { Mount, NodeName, Source, StoreName, Use, User, Volume, VolumeRef } from './model.ts';
import { newVolumeId, volumeName } from './names.ts';
import type { Records, Store, Uses } from './ports.ts';
import type { Stores } from './stores.ts';
import { createUsePublisher, type UsePublisher } from './use-publisher.ts';

const node = 'here' as NodeName;
const userAt = (path: string): User => ({ kind: 'path', name: path, node });

let records: Records;
/** The uses that the store has recorded, by host. */
let publishedUses: Map<string, Use>;
/** The single writer. */
let writer: string | undefined;
let isConfigured: boolean;
let isDown: boolean;
let isHung: boolean;
let hung: (() => void)[];
let volume: Volume;

const withFaults = async <T>(answer: () => T): Promise<T> => {
  if (isHung) await new Promise<void>((resolve) => hung.push(resolve));
  if (isDown) throw new Error('the server does not answer');
  return answer();
};
const uses: Uses = {
  put: (_volume, use) => withFaults(() => void publishedUses.set(use.host, use)),
  remove: (_id, host) =>
    withFaults(() => {
      publishedUses.delete(host);
      if (writer === host) writer = undefined;
    }),
  list: async () => [],
  takeWriter: async (_volume, host) => {
    if (writer !== undefined && writer !== host) throw new Error(`host ${writer} writes`);
    writer = host;
  },
  dropWriter: async () => undefined,
};
const clients = { isNodeLocal: () => false };
const store = { name: 'silver' as StoreName, uses } as unknown as Store;

beforeEach(() => {
  records = openRecords(':memory:');
  onTestFinished(() => records.close());
  writer = undefined;
  [publishedUses, isConfigured, isDown, isHung, hung] = [new Map(), true, false, false, []];
  volume = {
    id: newVolumeId(),
    name: volumeName('photos'),
    store: store.name,
    bytes: undefined,
    access: 'filesystem',
    labels: {},
    createdAt: 1,
    revision: 1,
    requestId: 'r',
    instance: 'i',
    enforce: false,
  } as Volume;
  records.volumes.put(volume);
});

/** Creates the publisher, as at each start. */
function createPublisher(clock = systemClock()): UsePublisher {
  const stores = {
    list: () => (isConfigured ? [{ config: { name: store.name } }] : []),
    use: async (_name: string, work: (one: Store) => Promise<unknown>) => {
      if (!isConfigured) throw new Error('there is no such store');
      return await work(store);
    },
  };
  return createUsePublisher({
    records,
    clients,
    clock,
    log: silentLog(),
    instance: 'host-1',
    node,
    stores: () => stores as unknown as Stores,
  });
}

/** Publishes a user like a mount, up to the point where the mount is recorded. */
async function publishUser(own: UsePublisher, path: string): Promise<void> {
  using _ = own.expectUser(volume.id, userAt(path));
  await own.publish(volume, store, scope);
}

const source = { kind: 'nfs', hosts: ['filer'], path: '/export/photos' } as unknown as Source;
const mountAt = (target: string): Mount => ({
  volumeId: volume.id,
  source,
  target,
  readOnly: false,
  user: userAt(target),
  since: 1,
  madeTarget: true,
});
const names = (): readonly string[] | undefined => publishedUses.get('host-1')?.users.map(({ name }) => name);

test('publishes each user before its mount, and the remaining users after an unmount', async () => {
  const publisher = createPublisher();
  for (const target of ['/a', '/b']) {
    await publishUser(publisher, target);
    expect(names()).toContain(target);
    records.mounts.put(mountAt(target));
  }
  expect(names()).toEqual(['/a', '/b']);
  records.mounts.remove('/a');
  await publisher.update(volume.id, scope);
  expect(names()).toEqual(['/b']);
  records.mounts.remove('/b');
  await publisher.update(volume.id, scope);
  expect(publishedUses.size).toBe(0);
});

test('a mount fails if the store does not answer', async () => {
  isDown = true;
  await expect(publishUser(createPublisher(), '/a')).rejects.toThrow('does not answer');
});

test('an update that fails at an unmount is retried later, even after a restart', async () => {
  const publisher = createPublisher();
  await publishUser(publisher, '/a');
  isDown = true;
  await publisher.update(volume.id, scope);
  expect(names()).toEqual(['/a']);
  await createPublisher().renew(scope);
  expect(names()).toEqual(['/a']);
  isDown = false;
  await createPublisher().renew(scope);
  expect(publishedUses.size).toBe(0);
});

test('a mount that a crash interrupted does not leave a use record forever', async () => {
  await publishUser(createPublisher(), '/a');
  await createPublisher().renew(scope);
  expect(publishedUses.size).toBe(0);
});

test('an unmount that is completed before stores are open is published when they are', async () => {
  await publishUser(createPublisher(), '/a');
  records.mounts.put(mountAt('/a'));
  await createPublisher().renew(scope);
  records.mounts.remove('/a');
  isConfigured = false;
  const restarted = createPublisher();
  await restarted.update(volume.id, scope);
  isConfigured = true;
  await restarted.renew(scope);
  expect(publishedUses.size).toBe(0);
});

test('a renewal during a mount does not remove its use record', async () => {
  const publisher = createPublisher();
  using _ = publisher.expectUser(volume.id, userAt('/a'));
  await publisher.publish(volume, store, scope);
  await publisher.renew(scope);
  expect(names()).toEqual(['/a']);
});

test('renews use records, even if somebody broke them', async () => {
  const publisher = createPublisher();
  await publishUser(publisher, '/a');
  records.mounts.put(mountAt('/a'));
  publishedUses.clear();
  await publisher.renew(scope);
  expect(names()).toEqual(['/a']);
});

test('does not wait for a hung server, whose late answer does not undo later updates', async () => {
  const clock = createFakeClock();
  const publisher = createPublisher(clock);
  await publishUser(publisher, '/a');
  isHung = true;
  const settling = publisher.update(volume.id, scope);
  await expect.poll(() => hung.length).toBe(1);
  clock.advance(3_001);
  await settling;
  expect(names()).toEqual(['/a']);
  isHung = false;
  const beginning = publishUser(publisher, '/b');
  for (const goOn of hung) goOn();
  await beginning;
  expect(names()).toEqual(['/b']);
});

test('before a deletion, calls the store only if an update is pending', async () => {
  const publisher = createPublisher();
  isDown = true;
  await publisher.removeIfUnused(volume, store, scope);
  isDown = false;
  await publishUser(publisher, '/a');
  await publisher.removeIfUnused(volume, store, scope);
  expect(publishedUses.size).toBe(0);
});

test('a host that lost its connection while using a volume removes its record when it is back', async () => {
  const disconnected = createPublisher();
  await publishUser(disconnected, '/a');
  records.mounts.put(mountAt('/a'));
  await disconnected.renew(scope);
  // After a reboot nothing is mounted, and the records say so.
  records.mounts.remove('/a');
  await createPublisher().renew(scope);
  expect(publishedUses.size).toBe(0);
});

test('writes a volume that is mounted repeatedly to the list only once', async () => {
  const publisher = createPublisher();
  const savedSettings = vi.spyOn(records.settings, 'set');
  for (let round = 0; round < 3; round++) {
    await publishUser(publisher, '/a');
    await publisher.update(volume.id, scope);
    expect(publishedUses.size).toBe(0);
  }
  expect(savedSettings).toHaveBeenCalledTimes(1);
  const removeCalls = vi.spyOn(uses, 'remove');
  onTestFinished(() => removeCalls.mockRestore());
  await publisher.renew(scope);
  expect(savedSettings).toHaveBeenCalledTimes(2);
  await publisher.renew(scope);
  expect(removeCalls).not.toHaveBeenCalled();
  expect(savedSettings).toHaveBeenCalledTimes(2);
});

test('repeats an unchanged update at every mount, but not at every event', async () => {
  const publisher = createPublisher();
  const putCalls = vi.spyOn(uses, 'put');
  onTestFinished(() => putCalls.mockRestore());
  await publishUser(publisher, '/a');
  records.mounts.put(mountAt('/a'));
  for (let event = 0; event < 3; event++) await publisher.update(volume.id, scope);
  expect(putCalls).toHaveBeenCalledTimes(1);
  // An administrator has deleted the use record. A new mount relies on it, so it must be published again.
  publishedUses.clear();
  await publishUser(publisher, '/a');
  expect(names()).toContain('/a');
});

test('retries a failed update at the next event', async () => {
  const publisher = createPublisher();
  await publishUser(publisher, '/a');
  records.mounts.put(mountAt('/a'));
  records.mounts.remove('/a');
  isDown = true;
  await publisher.update(volume.id, scope);
  isDown = false;
  await publisher.update(volume.id, scope);
  expect(publishedUses.size).toBe(0);
});

describe('the single writer', () => {
  test('is this host until nothing here uses the volume', async () => {
    const publisher = createPublisher();
    const coming = publisher.expectUser(volume.id, userAt('/a'));
    await publisher.publish(volume, store, scope, 'writer');
    expect(writer).toBe('host-1');
    coming[Symbol.dispose]();
    await publisher.update(volume.id, scope);
    expect(writer).toBeUndefined();
    expect(publishedUses.size).toBe(0);
  });

  test('publishes nothing if another host is the writer', async () => {
    writer = 'other';
    const publisher = createPublisher();
    using _ = publisher.expectUser(volume.id, userAt('/a'));
    await expect(publisher.publish(volume, store, scope, 'writer')).rejects.toThrow('host other writes');
    expect(publishedUses.size).toBe(0);
  });

  test('is released at the next start if the process was killed before publishing its users', async () => {
    isDown = true;
    await expect(createPublisher().publish(volume, store, scope, 'writer')).rejects.toThrow('does not answer');
    expect(writer).toBe('host-1');
    isDown = false;
    await createPublisher().renew(scope);
    expect(writer).toBeUndefined();
  });
});

describe('renewal on several stores', () => {
  /** The store `silver` answers; the store `lead` does not. If `isDeaf`, calls on `lead` also ignore their signals. */
  function onTwoStores(clock: FakeClock, isDeaf: boolean) {
    const renewed: string[] = [];
    const answering = (name: string): Store =>
      ({ name, uses: { ...uses, put: async (ref: VolumeRef) => void renewed.push(ref.name) } }) as unknown as Store;
    const silentStore = (name: string): Store => {
      const put = (_ref: VolumeRef, _use: Use, { signal }: Scope): Promise<void> =>
        isDeaf ? new Promise(() => undefined) : clock.sleep(1_000_000, signal);
      return { name, uses: { ...uses, put } } as unknown as Store;
    };
    const storeByName = new Map([silentStore('lead'), answering('silver')].map((one) => [one.name as string, one]));
    const stores = {
      list: () => [...storeByName.keys()].map((name) => ({ config: { name } })),
      use: (name: string, work: (one: Store) => Promise<unknown>) => work(storeByName.get(name) as Store),
    };
    for (const name of storeByName.keys())
      for (let n = 0; n < 20; n++) {
        const one = { ...volume, id: newVolumeId(), name: volumeName(`${name}-${n}`), store: name as StoreName };
        records.volumes.put(one);
        records.mounts.put({ ...mountAt(`/${name}/${n}`), volumeId: one.id });
      }
    const publisher = createUsePublisher({
      records,
      clients,
      clock,
      log: silentLog(),
      instance: 'host-1',
      node,
      stores: () => stores as unknown as Stores,
    });
    return { own: publisher, renewed };
  }

  test.each([false, true])(
    'a store that does not answer (and ignores the abort: %s) does not block other stores',
    async (isDeaf) => {
      const clock = createFakeClock();
      const { own, renewed } = onTwoStores(clock, isDeaf);
      for (let round = 1; round <= 3; round++) {
        const passing = own.renew(scope);
        await vi.waitFor(() => expect(renewed).toHaveLength(20 * round));
        clock.advance(20_000);
        await new Promise((resolve) => setImmediate(resolve));
        clock.advance(10_000);
        await passing;
      }
      expect(new Set(renewed).size).toBe(20);
    },
  );

  test('a slow store is first asked about volumes that the previous renewal did not reach', async () => {
    const clock = createFakeClock();
    const putVolumes: string[] = [];
    const put = async (ref: VolumeRef, _use: Use, { signal }: Scope): Promise<void> => {
      putVolumes.push(ref.name);
      await clock.sleep(15_000, signal);
    };
    const slowStore = { name: 'silver' as StoreName, uses: { ...uses, put } } as unknown as Store;
    const stores = {
      list: () => [{ config: { name: slowStore.name } }],
      use: (_: string, work: (one: Store) => unknown) => work(slowStore),
    };
    for (let n = 0; n < 30; n++) {
      const one = { ...volume, id: newVolumeId(), name: volumeName(`v-${n}`) };
      records.volumes.put(one);
      records.mounts.put({ ...mountAt(`/v/${n}`), volumeId: one.id });
    }
    const own = createUsePublisher({
      records,
      clients,
      clock,
      log: silentLog(),
      instance: 'host-1',
      node,
      stores: () => stores as unknown as Stores,
    });
    for (let round = 0; round < 2; round++) {
      const passing = own.renew(scope);
      for (let second = 0; second < 30; second++) {
        clock.advance(1_000);
        await new Promise((resolve) => setImmediate(resolve));
      }
      await passing;
    }
    expect(new Set(putVolumes).size).toBe(30);
  });
});
