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
/** What the store says of the volume's hosts. */
let said: Map<string, Use>;
/** The host that alone may write. */
let writer: string | undefined;
let isConfigured: boolean;
let isDown: boolean;
let isHung: boolean;
let hung: (() => void)[];
let volume: Volume;

const answered = async <T>(answer: () => T): Promise<T> => {
  if (isHung) await new Promise<void>((resolve) => hung.push(resolve));
  if (isDown) throw new Error('the server does not answer');
  return answer();
};
const uses: Uses = {
  put: (_volume, use) => answered(() => void said.set(use.host, use)),
  remove: (_id, host) =>
    answered(() => {
      said.delete(host);
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
  [said, isConfigured, isDown, isHung, hung] = [new Map(), true, false, false, []];
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

/** As after each start. */
function started(clock = systemClock()): UsePublisher {
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

/** As a mount does it, up to where its record is written. */
async function begin(own: UsePublisher, path: string): Promise<void> {
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
const names = (): readonly string[] | undefined => said.get('host-1')?.users.map(({ name }) => name);

test('each user is said before its mount, and the rest when one is gone', async () => {
  const own = started();
  for (const target of ['/a', '/b']) {
    await begin(own, target);
    expect(names()).toContain(target);
    records.mounts.put(mountAt(target));
  }
  expect(names()).toEqual(['/a', '/b']);
  records.mounts.remove('/a');
  await own.update(volume.id, scope);
  expect(names()).toEqual(['/b']);
  records.mounts.remove('/b');
  await own.update(volume.id, scope);
  expect(said.size).toBe(0);
});

test('a store that does not answer keeps the mount from being made', async () => {
  isDown = true;
  await expect(begin(started(), '/a')).rejects.toThrow('does not answer');
});

test('a store that does not answer at an unmount is told later, also by the next start', async () => {
  const own = started();
  await begin(own, '/a');
  isDown = true;
  await own.update(volume.id, scope);
  expect(names()).toEqual(['/a']);
  await started().renew(scope);
  expect(names()).toEqual(['/a']);
  isDown = false;
  await started().renew(scope);
  expect(said.size).toBe(0);
});

test('a mount that a crash cut off leaves no record for ever', async () => {
  await begin(started(), '/a');
  await started().renew(scope);
  expect(said.size).toBe(0);
});

test('an unmount that is completed before stores are opened is said when they are', async () => {
  await begin(started(), '/a');
  records.mounts.put(mountAt('/a'));
  await started().renew(scope);
  records.mounts.remove('/a');
  isConfigured = false;
  const next = started();
  await next.update(volume.id, scope);
  isConfigured = true;
  await next.renew(scope);
  expect(said.size).toBe(0);
});

test('while a mount is being made, saying it again does not take it back', async () => {
  const own = started();
  using _ = own.expectUser(volume.id, userAt('/a'));
  await own.publish(volume, store, scope);
  await own.renew(scope);
  expect(names()).toEqual(['/a']);
});

test('what is used is said again, and that it was broken by somebody does not matter', async () => {
  const own = started();
  await begin(own, '/a');
  records.mounts.put(mountAt('/a'));
  said.clear();
  await own.renew(scope);
  expect(names()).toEqual(['/a']);
});

test('a server that hangs is not waited for, and what it does late does not undo what follows', async () => {
  const clock = createFakeClock();
  const own = started(clock);
  await begin(own, '/a');
  isHung = true;
  const settling = own.update(volume.id, scope);
  await expect.poll(() => hung.length).toBe(1);
  clock.advance(3_001);
  await settling;
  expect(names()).toEqual(['/a']);
  isHung = false;
  const beginning = begin(own, '/b');
  for (const goOn of hung) goOn();
  await beginning;
  expect(names()).toEqual(['/b']);
});

test('before a deletion only what was left unsaid is asked for', async () => {
  const own = started();
  isDown = true;
  await own.end(volume, store, scope);
  isDown = false;
  await begin(own, '/a');
  await own.end(volume, store, scope);
  expect(said.size).toBe(0);
});

test('a machine that was cut off while it used a volume takes its record back when it is there again', async () => {
  const before = started();
  await begin(before, '/a');
  records.mounts.put(mountAt('/a'));
  await before.renew(scope);
  // Nothing is mounted after a start of the machine, and so is said by our records.
  records.mounts.remove('/a');
  await started().renew(scope);
  expect(said.size).toBe(0);
});

test('a volume that is mounted again and again is written down once, until it has not been for a while', async () => {
  const own = started();
  const written = vi.spyOn(records.settings, 'set');
  for (let again = 0; again < 3; again++) {
    await begin(own, '/a');
    await own.update(volume.id, scope);
    expect(said.size).toBe(0);
  }
  expect(written).toHaveBeenCalledTimes(1);
  const removed = vi.spyOn(uses, 'remove');
  onTestFinished(() => removed.mockRestore());
  await own.renew(scope);
  expect(written).toHaveBeenCalledTimes(2);
  await own.renew(scope);
  expect(removed).not.toHaveBeenCalled();
  expect(written).toHaveBeenCalledTimes(2);
});

test('what a store has been told is not told again for every event, but for every mount', async () => {
  const own = started();
  const put = vi.spyOn(uses, 'put');
  onTestFinished(() => put.mockRestore());
  await begin(own, '/a');
  records.mounts.put(mountAt('/a'));
  for (let event = 0; event < 3; event++) await own.update(volume.id, scope);
  expect(put).toHaveBeenCalledTimes(1);
  // Somebody has broken it: whoever mounts it counts on it.
  said.clear();
  await begin(own, '/a');
  expect(names()).toContain('/a');
});

test('what could not be said is said at the next event', async () => {
  const own = started();
  await begin(own, '/a');
  records.mounts.put(mountAt('/a'));
  records.mounts.remove('/a');
  isDown = true;
  await own.update(volume.id, scope);
  isDown = false;
  await own.update(volume.id, scope);
  expect(said.size).toBe(0);
});

describe('as the one who writes', () => {
  test('it is, until nothing here uses the volume any more', async () => {
    const own = started();
    const coming = own.expectUser(volume.id, userAt('/a'));
    await own.publish(volume, store, scope, 'writer');
    expect(writer).toBe('host-1');
    coming[Symbol.dispose]();
    await own.update(volume.id, scope);
    expect(writer).toBeUndefined();
    expect(said.size).toBe(0);
  });

  test('it says nothing where another host is', async () => {
    writer = 'other';
    const own = started();
    using _ = own.expectUser(volume.id, userAt('/a'));
    await expect(own.publish(volume, store, scope, 'writer')).rejects.toThrow('host other writes');
    expect(said.size).toBe(0);
  });

  test('killed before it is said who uses it, the next start takes it back', async () => {
    isDown = true;
    await expect(started().publish(volume, store, scope, 'writer')).rejects.toThrow('does not answer');
    expect(writer).toBe('host-1');
    isDown = false;
    await started().renew(scope);
    expect(writer).toBeUndefined();
  });
});

describe('renewal on several stores', () => {
  /** `silver` answers; `lead` and all that is on it does not, and hears no signal if it is deaf. */
  function onTwoStores(clock: FakeClock, isDeaf: boolean) {
    const renewed: string[] = [];
    const answering = (name: string): Store =>
      ({ name, uses: { ...uses, put: async (ref: VolumeRef) => void renewed.push(ref.name) } }) as unknown as Store;
    const silent = (name: string): Store => {
      const put = (_ref: VolumeRef, _use: Use, { signal }: Scope): Promise<void> =>
        isDeaf ? new Promise(() => undefined) : clock.sleep(1_000_000, signal);
      return { name, uses: { ...uses, put } } as unknown as Store;
    };
    const all = new Map([silent('lead'), answering('silver')].map((one) => [one.name as string, one]));
    const stores = {
      list: () => [...all.keys()].map((name) => ({ config: { name } })),
      use: (name: string, work: (one: Store) => Promise<unknown>) => work(all.get(name) as Store),
    };
    for (const name of all.keys())
      for (let n = 0; n < 20; n++) {
        const one = { ...volume, id: newVolumeId(), name: volumeName(`${name}-${n}`), store: name as StoreName };
        records.volumes.put(one);
        records.mounts.put({ ...mountAt(`/${name}/${n}`), volumeId: one.id });
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
    return { own, renewed };
  }

  test.each([false, true])('one that does not answer (and hears no signal: %s) starves no other', async (isDeaf) => {
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
  });

  test('a slow one is asked first about what it was not asked about before', async () => {
    const clock = createFakeClock();
    const asked: string[] = [];
    const put = async (ref: VolumeRef, _use: Use, { signal }: Scope): Promise<void> => {
      asked.push(ref.name);
      await clock.sleep(15_000, signal);
    };
    const slow = { name: 'silver' as StoreName, uses: { ...uses, put } } as unknown as Store;
    const stores = {
      list: () => [{ config: { name: slow.name } }],
      use: (_: string, work: (one: Store) => unknown) => work(slow),
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
    expect(new Set(asked).size).toBe(30);
  });
});
