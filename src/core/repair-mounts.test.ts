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
/** Where a bind fails, and stages of which nobody can say whether they are served. */
let bindFails: Set<string>;
let unknown: Set<string>;
let repaired: string[];
/** What the store says, and how the client was asked to mount. */
let now: Source | undefined;
let stagedBy: Source[];

const source = { kind: 'nfs', hosts: ['filer'], path: '/export/a' } as unknown as Extract<Source, { kind: 'nfs' }>;
const at = (name: string): string => join(folder, name);
const stageOf = (id: VolumeId): string => at(`s/${id}`);

beforeEach(() => {
  folder = realpathSync(mkdtempSync(join(tmpdir(), 'stowage-repair-')));
  mkdirSync(at('s'));
  records = openRecords(':memory:');
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true });
  });
  mounts = createFakeMounts();
  clients = createFakeClients(mounts);
  [bindFails, unknown, repaired, now, stagedBy] = [new Set(), new Set(), [], undefined, []];
});

function failing(): Pick<MountParts, 'mounter' | 'clients'> {
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
        dead: async (all, own) => {
          if (all.some((one) => unknown.has(one.target.path))) throw new Error('the keeper does not answer');
          return (await nfs.dead?.(all, own)) ?? [];
        },
        stage: async (from, ...rest) => {
          stagedBy.push(from);
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
    ...failing(),
    mountsFolder: at('s'),
    clock,
    events,
    log: silentLog(),
    instance: 'i',
    node: 'n' as NodeName,
    catalogue: {},
    stores: () => ({
      use: async (_: string, work: (store: unknown) => unknown) => {
        if (now === undefined) throw new Error('the store does not answer');
        return await work({ source: async () => now });
      },
    }),
    operations: { lock: async () => ({ [Symbol.dispose]: () => undefined }) },
  } as unknown as MountParts;
}

/** As after a start. */
async function repair(): Promise<readonly VolumeId[]> {
  const own = parts();
  return await createRepairMounts(own, createVolumeStaging(own))(scope);
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
/** What is mounted there is what is staged, and that is served. */
async function shown(id: VolumeId, target: string): Promise<boolean> {
  const table = await mounts.readTable();
  const dead = await clients.nfs.dead?.([{ source, target: targetAt(stageOf(id)) }], scope);
  return dead?.length === 0 && table.mountAt(target)?.device === table.mountAt(stageOf(id))?.device;
}

test('leaves healthy mounts alone', async () => {
  await volumeAt(at('a'), at('b'));
  const before = await mounts.mounter.list(scope);
  await repair();
  expect(await mounts.mounter.list(scope)).toEqual(before);
  expect(repaired).toEqual([]);
});

test('remounts a dead mount at each of its targets, and publishes an event', async () => {
  const id = await volumeAt(at('a'), at('b'));
  const other = await volumeAt(at('c'));
  await kill(id);
  await repair();
  for (const target of [at('a'), at('b')]) expect(await shown(id, target)).toBe(true);
  expect(await shown(other, at('c'))).toBe(true);
  expect(repaired.sort()).toEqual([at('a'), at('b')]);
  const since = (target: string) => repairedAt(records, { target, since: 1 });
  expect([at('a'), at('b'), at('c')].map((target) => since(target) !== undefined)).toEqual([true, true, false]);
});

test('retries a target that could not be bound again, even if the volume is served by then', async () => {
  const id = await volumeAt(at('a'), at('b'));
  await kill(id);
  bindFails.add(at('a'));
  await repair();
  expect(await shown(id, at('a'))).toBe(false);
  expect(volumesUnderRepair(records)).toEqual([id]);
  bindFails.clear();
  await repair();
  for (const target of [at('a'), at('b')]) expect(await shown(id, target)).toBe(true);
  expect(volumesUnderRepair(records)).toEqual([]);
});

test('finds a target that still shows the dead mount, without a record of a repair', async () => {
  const id = await volumeAt(at('a'));
  mounts.remove(at('a'));
  mounts.mount(at('a'), { source: ownSource(id, 'older'), type: 'fuse.stowage' });
  await repair();
  expect(await shown(id, at('a'))).toBe(true);
});

test('does not remount a target that somebody unmounted', async () => {
  await volumeAt(at('a'));
  mounts.remove(at('a'));
  await repair();
  expect(await mounts.mounter.isMounted(at('a'), scope)).toBe(false);
});

test('a volume that cannot be repaired does not block the repair of others', async () => {
  const bad = await volumeAt(at('bad'));
  const good = await volumeAt(at('good'));
  for (const id of [bad, good]) await kill(id);
  bindFails.add(at('bad'));
  await repair();
  expect(await shown(good, at('good'))).toBe(true);
  expect(await shown(bad, at('bad'))).toBe(false);
});

test('a mount of unknown state counts as not repaired, and does not block the repair of others', async () => {
  const silent = await volumeAt(at('silent'));
  const dead = await volumeAt(at('dead'));
  await kill(dead);
  unknown.add(stageOf(silent));
  const before = (await mounts.readTable()).mountAt(at('silent'));
  expect(await repair()).toEqual([silent]);
  expect(await shown(dead, at('dead'))).toBe(true);
  expect((await mounts.readTable()).mountAt(at('silent'))).toBe(before);
  unknown.clear();
  expect(await repair()).toEqual([]);
});

test('a remount keeps the options of the mount even if those of the store have changed', async () => {
  const id = await volumeAt(at('a'));
  const way = { client: 'built-in', addresses: ['10.0.0.1'], port: 2049, root: 'AAAA', softMs: undefined, uid: 0 };
  const known = { ...source, way } as unknown as Source;
  for (const mount of records.mounts.of(id)) records.mounts.put({ ...mount, source: known });
  const moved = { addresses: ['10.0.0.2'], port: 2050, mountPort: 635, root: 'BBBB', quota: { bytes: 1, ledger: 'C' } };
  now = {
    ...known,
    hosts: ['other'],
    way: { ...way, client: 'host', softMs: 1, uid: 7, ...moved },
  } as unknown as Source;
  records.volumes.put(volumeOf(id));
  await kill(id);
  stagedBy = [];
  expect(await repair()).toEqual([]);
  const anew = { ...known, hosts: ['other'], way: { ...way, ...moved } };
  expect(stagedBy).toEqual([anew]);
  expect(records.mounts.of(id).map((mount) => mount.source)).toEqual([JSON.parse(JSON.stringify(anew))]);
});
