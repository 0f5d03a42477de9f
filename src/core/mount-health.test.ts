import { beforeEach, expect, onTestFinished, test } from 'vitest';
import type { KeeperKind } from '#clients/data-path/keeper-kind.ts';
import { createNfsClient, type NfsClientParts } from '#clients/kinds/nfs.ts';
import { openRecords } from '#records/sqlite.ts';
import { scope } from '#testing/contracts/store.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type ClientTable, createClients } from './clients.ts';
import { StowageError } from './errors.ts';
import type { LiveMount, Mount, NodeName, Source, StoreName, Volume, VolumeId, VolumeName } from './model.ts';
import { createMountHealth, type MountHealthParts } from './mount-health.ts';
import { newVolumeId } from './names.ts';
import type { Records } from './ports.ts';
import { recordRepair, repairedAt } from './repaired-mounts.ts';

let records: Records;
let dead: Set<VolumeId>;
let mute: Set<VolumeId>;
let troubles: Map<string, string>;
let problems: Map<string, StowageError>;
let silentStores: Set<string>;
let mounts: LiveMount[];
let checkedVolumes: VolumeId[];
const clock = createFakeClock();

beforeEach(() => {
  records = openRecords(':memory:');
  onTestFinished(() => records.close());
  [dead, mute, troubles, problems, silentStores] = [new Set(), new Set(), new Map(), new Map(), new Set()];
  [mounts, checkedVolumes] = [[], []];
});

function addMount(
  target: string,
  { store = 'silver', network = 'one', client = 'built-in', since = 1 } = {},
): VolumeId {
  const id = newVolumeId();
  const volume = { id, name: target.slice(1) as VolumeName, store: store as StoreName, labels: {}, revision: 1 };
  records.volumes.put({
    ...volume,
    bytes: undefined,
    enforce: false,
    access: 'filesystem',
    requestId: target,
    createdAt: 1,
    instance: 'i',
  } satisfies Volume);
  const source = { kind: 'nfs', hosts: ['filer'], path: target, way: { network, client } } as unknown as Source;
  const user = { kind: 'pod', name: 'shop/web', node: 'n' as NodeName } as const;
  const mount: Mount = { volumeId: id, source, target, readOnly: false, user, since, madeTarget: false };
  records.mounts.put(mount);
  mounts.push({ ...mount, mounted: true });
  return id;
}

/** A client that reports, for each network, the problem of the keeper that serves it. */
const nfsParts = {
  keepers: { problemOf: async ({ network = '' }: KeeperKind) => troubles.get(network) },
} as unknown as NfsClientParts;

async function mountProblems(
  only?: VolumeId,
): Promise<Readonly<Record<string, readonly [string, string | undefined]>>> {
  const parts = {
    records,
    clock,
    mounts: {
      list: async () => mounts,
      ofVolume: async (id: VolumeId) => mounts.filter(({ volumeId }) => volumeId === id),
      isDead: async (id: VolumeId) => {
        checkedVolumes.push(id);
        if (mute.has(id)) throw new Error('the keeper does not answer');
        return dead.has(id);
      },
    },
    stagingPathOf: (id: VolumeId) => `/s/${id}`,
    clients: createClients({ nfs: createNfsClient(nfsParts) } as unknown as ClientTable),
    stores: () => ({
      view: (name: string) => {
        if (name === 'gone')
          throw new StowageError('there is no such store', { code: 'not-found', reason: 'store-unknown', action: '' });
        return { problem: problems.get(name) };
      },
    }),
    liveness: {
      findSilent: async (names: readonly string[]) => new Set(names.filter((name) => silentStores.has(name))),
      denialOf: () => undefined,
    },
  } as unknown as MountHealthParts;
  const all = await createMountHealth(parts)(scope, only);
  return Object.fromEntries(all.map(({ target, health }) => [target, [health.state, health.detail]]));
}

test('reports the state and the problem of each mount', async () => {
  addMount('/well');
  addMount('/of-no-store', { store: 'gone' });
  dead.add(addMount('/dead', { store: 'quiet' }));
  mute.add(addMount('/mute'));
  addMount('/failing', { network: 'two' });
  addMount('/quiet', { store: 'quiet' });
  addMount('/closed', { store: 'closed' });
  addMount('/taken');
  mounts = mounts.map((mount) => ({ ...mount, mounted: mount.target !== '/taken' }));
  troubles.set('two', 'it dies again and again');
  silentStores.add('quiet');
  problems.set(
    'closed',
    new StowageError('no route to 10.0.0.1', { code: 'unavailable', reason: 'nfs-no-route', action: 'Look' }),
  );
  expect(await mountProblems()).toEqual({
    '/well': ['ok', undefined],
    '/of-no-store': ['ok', undefined],
    '/dead': ['dead', 'no process serves the mount; it is being remounted'],
    '/mute': ['client-failing', 'the client that serves the mount does not answer'],
    '/failing': ['client-failing', 'it dies again and again'],
    '/quiet': ['store-silent', "the server of store 'quiet' does not answer"],
    // The text does not reveal the store's location.
    '/closed': [
      'store-silent',
      "store 'closed' is not open: the server of the store does not answer: a network or server failure, not missing permissions",
    ],
    '/taken': ['unmounted', 'the volume is not mounted at its target any more: somebody unmounted it'],
  });
});

test("a failing data path says nothing about mounts of the system's client on the same network", async () => {
  addMount('/a', { network: 'two', client: 'host' });
  addMount('/b', { network: 'two' });
  addMount('/c', { network: 'two', client: 'host' });
  troubles.set('two', 'it dies again and again');
  expect(await mountProblems()).toEqual({
    '/a': ['ok', undefined],
    '/b': ['client-failing', 'it dies again and again'],
    '/c': ['ok', undefined],
  });
});

test('checks only the requested volume', async () => {
  addMount('/other');
  const id = addMount('/one');
  dead.add(id);
  expect(await mountProblems(id)).toEqual({ '/one': ['dead', 'no process serves the mount; it is being remounted'] });
  expect(checkedVolumes).toEqual([id]);
});

test('remembers a repair for the user of the mount, but not for the next user of the target', () => {
  addMount('/a', { since: 10 });
  addMount('/b', { since: 10 });
  recordRepair(records, { target: '/a' }, 20);
  recordRepair(records, { target: '/b' }, 30);
  const repairTimes = () => ['/a', '/b'].map((target) => repairedAt(records, { target, since: 10 }));
  expect(repairTimes()).toEqual([20, 30]);
  expect(repairedAt(records, { target: '/a', since: 25 })).toBeUndefined();
  records.mounts.remove('/a');
  recordRepair(records, { target: '/b' }, 40);
  expect(repairTimes()).toEqual([undefined, 40]);
});
