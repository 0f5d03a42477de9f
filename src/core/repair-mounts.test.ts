import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { openRecords } from '#records/sqlite.ts';
import { scope } from '#testing/contracts/store.ts';
import { createFakeClients, type FakeClients } from '#testing/fakes/clients.ts';
import { createFakeMounts, type FakeMounts } from '#testing/fakes/mounts.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createClients } from './clients.ts';
import { createEvents } from './events.ts';
import type { Mount, NodeName, Source, StoreName, Volume, VolumeId, VolumeName } from './model.ts';
import type { MountParts } from './mounts.ts';
import { newVolumeId } from './names.ts';
import type { Records } from './ports.ts';
import { createRepairMounts } from './repair-mounts.ts';
import { repairedAt } from './repaired-mounts.ts';
import { createVolumeStaging, ownSource, volumesUnderRepair } from './volume-staging.ts';

/** A node with mounts that a data path serves. */
let folder: string;
let records: Records;
let mounts: FakeMounts;
let clients: FakeClients;
/** `bindFails`: the targets where a bind fails. `unreachableStages`: stages whose keeper does not answer. */
let bindFails: Set<string>;
let unreachableStages: Set<string>;
let repaired: string[];
/** `currentSource`: the source that the store returns. `stagedSources`: the sources that the client was called with. */
let currentSource: Source | undefined;
let stagedSources: Source[];

const source = { kind: 'nfs', hosts: ['filer'], path: '/export/a' } as unknown as Extract<Source, { kind: 'nfs' }>;
const pathOf = (name: string): string => join(folder, name);
const stageOf = (id: VolumeId): string => pathOf(`s/${id}`);

beforeEach(() => {
  folder = realpathSync(mkdtempSync(join(tmpdir(), 'stowage-repair-')));
  mkdirSync(pathOf('s'));
  records = openRecords(':memory:');
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true });
  });
  mounts = createFakeMounts();
  clients = createFakeClients(mounts);
  [bindFails, unreachableStages, repaired, currentSource, stagedSources] = [new Set(), new Set(), [], undefined, []];
});

function failingParts(): Pick<MountParts, 'mounter' | 'clients'> {
  const { mounter } = mounts;
  const { nfs } = clients;
  return {
    mounter: {
      ...mounter,
      bind: async (from, to, ...rest) => {
        if (bindFails.has(to)) throw new Error('no');
        await mounter.bind(from, to, ...rest);
      },
    },
    clients: createClients({
      ...clients,
      nfs: {
        ...nfs,
        findDeadMounts: async (all, own) => {
          if (all.some((one) => unreachableStages.has(one.target.path))) throw new Error('the keeper does not answer');
          return (await nfs.findDeadMounts?.(all, own)) ?? [];
        },
        stage: async (from, ...rest) => {
          stagedSources.push(from);
          await nfs.stage(from, ...rest);
        },
      },
    }),
  };
}

function parts(): MountParts {
  const clock = systemClock();
  const events = createEvents('e', clock);
  events.subscribe(({ type, subject }) => type === 'mount.repaired' && repaired.push(subject));
  return {
    records,
    ...failingParts(),
    mountsFolder: pathOf('s'),
    clock,
    events,
    log: silentLog(),
    instance: 'i',
    node: 'n' as NodeName,
    catalogue: {},
    stores: () => ({
      use: async (_: string, work: (store: unknown) => unknown) => {
        if (currentSource === undefined) throw new Error('the store does not answer');
        return await work({ source: async () => currentSource });
      },
    }),
    operations: { lock: async () => ({ [Symbol.dispose]: () => undefined }) },
  } as unknown as MountParts;
}

/** Repairs the mounts like a server that has just started. */
async function repair(): Promise<readonly VolumeId[]> {
  const repairParts = parts();
  return await createRepairMounts(repairParts, createVolumeStaging(repairParts))(scope);
}

async function volumeAt(...targets: readonly string[]): Promise<VolumeId> {
  const id = newVolumeId();
  await clients.nfs.stage(source, targetAt(stageOf(id)), scope);
  for (const target of targets) {
    mkdirSync(target);
    await mounts.mounter.bind(stageOf(id), target, { readOnly: false }, scope);
    const user = { kind: 'path', name: target, node: 'n' as NodeName } as const;
    records.mounts.put({ volumeId: id, source, target, readOnly: false, user, since: 1, madeTarget: false } as Mount);
  }
  return id;
}

const volumeOf = (id: VolumeId): Volume => ({
  id,
  name: 'a' as VolumeName,
  store: 'silver' as StoreName,
  bytes: undefined,
  enforce: false,
  labels: {},
  access: 'filesystem',
  requestId: 'r',
  createdAt: 1,
  revision: 1,
  instance: 'i',
});

const kill = (id: VolumeId): Promise<void> => clients.nfs.kill(stageOf(id));
/** The target shows the staged mount, and a process serves it. */
async function isServedAt(id: VolumeId, target: string): Promise<boolean> {
  const table = await mounts.readTable();
  const dead = await clients.nfs.findDeadMounts?.([{ source, target: targetAt(stageOf(id)) }], scope);
  return dead?.length === 0 && table.mountAt(target)?.device === table.mountAt(stageOf(id))?.device;
}

test('the repair leaves healthy mounts alone', async () => {
  await volumeAt(pathOf('a'), pathOf('b'));
  const tableBefore = await mounts.mounter.list(scope);
  await repair();
  expect(await mounts.mounter.list(scope)).toEqual(tableBefore);
  expect(repaired).toEqual([]);
});

test('the repair remounts a dead mount at each of its targets, and publishes an event', async () => {
  const id = await volumeAt(pathOf('a'), pathOf('b'));
  const otherVolume = await volumeAt(pathOf('c'));
  await kill(id);
  await repair();
  for (const target of [pathOf('a'), pathOf('b')]) expect(await isServedAt(id, target)).toBe(true);
  expect(await isServedAt(otherVolume, pathOf('c'))).toBe(true);
  expect(repaired.sort()).toEqual([pathOf('a'), pathOf('b')]);
  const repairedAtTarget = (target: string) => repairedAt(records, { target, since: 1 });
  expect([pathOf('a'), pathOf('b'), pathOf('c')].map((target) => repairedAtTarget(target) !== undefined)).toEqual([
    true,
    true,
    false,
  ]);
});

test('the repair retries a target that could not be bound again, even if the volume is served by then', async () => {
  const id = await volumeAt(pathOf('a'), pathOf('b'));
  await kill(id);
  bindFails.add(pathOf('a'));
  await repair();
  expect(await isServedAt(id, pathOf('a'))).toBe(false);
  expect(volumesUnderRepair(records)).toEqual([id]);
  bindFails.clear();
  await repair();
  for (const target of [pathOf('a'), pathOf('b')]) expect(await isServedAt(id, target)).toBe(true);
  expect(volumesUnderRepair(records)).toEqual([]);
});

test('the repair finds a target that still shows the dead mount, without a record of an earlier repair', async () => {
  const id = await volumeAt(pathOf('a'));
  mounts.remove(pathOf('a'));
  mounts.mount(pathOf('a'), { source: ownSource(id, 'older'), type: 'fuse.stowage' });
  await repair();
  expect(await isServedAt(id, pathOf('a'))).toBe(true);
});

test('the repair does not remount a target that another program unmounted', async () => {
  await volumeAt(pathOf('a'));
  mounts.remove(pathOf('a'));
  await repair();
  expect(await mounts.mounter.isMounted(pathOf('a'), scope)).toBe(false);
});

test('a volume that cannot be repaired does not block the repair of others', async () => {
  const bad = await volumeAt(pathOf('bad'));
  const good = await volumeAt(pathOf('good'));
  for (const id of [bad, good]) await kill(id);
  bindFails.add(pathOf('bad'));
  await repair();
  expect(await isServedAt(good, pathOf('good'))).toBe(true);
  expect(await isServedAt(bad, pathOf('bad'))).toBe(false);
});

test('a mount of unknown state counts as not repaired, and does not block the repair of others', async () => {
  const silentVolume = await volumeAt(pathOf('silent'));
  const dead = await volumeAt(pathOf('dead'));
  await kill(dead);
  unreachableStages.add(stageOf(silentVolume));
  const mountBefore = (await mounts.readTable()).mountAt(pathOf('silent'));
  expect(await repair()).toEqual([silentVolume]);
  expect(await isServedAt(dead, pathOf('dead'))).toBe(true);
  expect((await mounts.readTable()).mountAt(pathOf('silent'))).toBe(mountBefore);
  unreachableStages.clear();
  expect(await repair()).toEqual([]);
});

test('a remount keeps the options of the mount even if those of the store have changed', async () => {
  const id = await volumeAt(pathOf('a'));
  const way = { client: 'built-in', addresses: ['10.0.0.1'], port: 2049, root: 'AAAA', softMs: undefined, uid: 0 };
  const recordedSource = { ...source, way } as unknown as Source;
  for (const mount of records.mounts.byVolume(id)) records.mounts.put({ ...mount, source: recordedSource });
  const moved = { addresses: ['10.0.0.2'], port: 2050, mountPort: 635, root: 'BBBB', quota: { bytes: 1, ledger: 'C' } };
  currentSource = {
    ...recordedSource,
    hosts: ['other'],
    way: { ...way, client: 'host', softMs: 1, uid: 7, ...moved },
  } as unknown as Source;
  records.volumes.put(volumeOf(id));
  await kill(id);
  stagedSources = [];
  expect(await repair()).toEqual([]);
  const anew = { ...recordedSource, hosts: ['other'], way: { ...way, ...moved } };
  expect(stagedSources).toEqual([anew]);
  expect(records.mounts.byVolume(id).map((mount) => mount.source)).toEqual([JSON.parse(JSON.stringify(anew))]);
});
