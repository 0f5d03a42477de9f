import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { openRecords } from '#records/sqlite.ts';
import { scope } from '#testing/contracts/store.ts';
import { createEvents } from './events.ts';
import { repairedAt } from './mended-mounts.ts';
import type { Mount, NodeName, Source, StoreName, Volume, VolumeId, VolumeName } from './model.ts';
import type { MountParts } from './mounts.ts';
import { newVolumeId } from './names.ts';
import type { Client, Mounter, MountPoint, Records } from './ports.ts';
import { createRepair } from './repair.ts';
import { createStaging, ownSource, repairing } from './staging.ts';

/** A node with mounts that a data path serves: what the kernel shows, and what is served of it. */
let records: Records;
let table: Map<string, string>;
let served: Set<string>;
let bindFails: Set<string>;
let staged: number;
let repaired: string[];
let unknown: Set<string>;
/** What the store says, and how the client was asked to mount. */
let now: Source | undefined;
let stagedBy: Source[];

const source = { kind: 'nfs', hosts: ['filer'], path: '/export/a' } as unknown as Source;
const stageOf = (id: VolumeId): string => `/s/${id}`;

beforeEach(() => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-repair-'));
  records = openRecords(join(folder, 'state.db'));
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true });
  });
  [table, served, bindFails, staged, repaired] = [new Map(), new Set(), new Set(), 0, []];
  [unknown, now, stagedBy] = [new Set(), undefined, []];
});

const point = ([at, from]: [string, string]): MountPoint => ({
  ...{ at, device: from, root: '/', source: from, type: 'fuse.stowage', readOnly: false },
});

const mounter = {
  unable: undefined,
  list: async () => [...table].map(point),
  detach: async (at: string) => void table.delete(at),
  bind: async (from: string, at: string) => {
    if (bindFails.has(at)) throw new Error('no');
    table.set(at, table.get(from) ?? '');
  },
} as unknown as Mounter;

const nfs = {
  kind: 'nfs',
  dead: async (all: readonly { readonly at: string }[]) => {
    if (all.some(({ at }) => unknown.has(at))) throw new Error('the keeper does not answer');
    return all.map(({ at }) => at).filter((at) => !served.has(table.get(at) ?? ''));
  },
  stage: async (from: Source, at: string) => {
    stagedBy.push(from);
    const id = at.slice('/s/'.length) as VolumeId;
    const fresh = ownSource(id, `${++staged}`);
    table.set(at, fresh);
    served.add(fresh);
  },
} as unknown as Client<'nfs'>;

function parts(): MountParts {
  const clock = systemClock();
  const events = createEvents('e', clock);
  events.subscribe(({ type, subject }) => type === 'mount.repaired' && repaired.push(subject));
  return {
    ...{ records, mounter, clients: { nfs }, mountsFolder: '/s', clock, events, log: silentLog(), instance: 'i' },
    ...{ node: 'n' as NodeName, catalogue: {} },
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
  return await createRepair(own, createStaging(own))(scope);
}

async function volumeAt(...targets: readonly string[]): Promise<VolumeId> {
  const id = newVolumeId();
  await nfs.stage(source as never, stageOf(id), scope);
  for (const target of targets) {
    table.set(target, table.get(stageOf(id)) ?? '');
    const user = { kind: 'path', name: target, node: 'n' as NodeName } as const;
    records.mounts.put({ volumeId: id, source, target, readOnly: false, user, since: 1, madeTarget: false } as Mount);
  }
  return id;
}

const volumeOf = (id: VolumeId): Volume => ({
  ...{ id, name: 'a' as VolumeName, store: 'silver' as StoreName, bytes: undefined, enforce: false, labels: {} },
  ...{ access: 'filesystem', requestId: 'r', createdAt: 1, revision: 1, instance: 'i' },
});

const shown = (id: VolumeId, target: string): boolean =>
  table.get(target) === table.get(stageOf(id)) && served.has(table.get(target) ?? '');

test('what is served is left alone', async () => {
  await volumeAt('/a', '/b');
  const before = new Map(table);
  await repair();
  expect(table).toEqual(before);
  expect(repaired).toEqual([]);
});

test('what nobody serves is mounted anew at each of its places, and told', async () => {
  const id = await volumeAt('/a', '/b');
  const other = await volumeAt('/c');
  served.delete(table.get(stageOf(id)) ?? '');
  await repair();
  for (const target of ['/a', '/b']) expect(shown(id, target)).toBe(true);
  expect(shown(other, '/c')).toBe(true);
  expect(repaired.sort()).toEqual(['/a', '/b']);
  const since = (target: string) => repairedAt(records, { target, since: 1 });
  expect(['/a', '/b', '/c'].map((target) => since(target) !== undefined)).toEqual([true, true, false]);
});

test('a place that could not be made anew is tried again, though the volume is served by then', async () => {
  const id = await volumeAt('/a', '/b');
  served.clear();
  bindFails.add('/a');
  await repair();
  expect(shown(id, '/a')).toBe(false);
  expect(repairing(records)).toEqual([id]);
  bindFails.clear();
  await repair();
  for (const target of ['/a', '/b']) expect(shown(id, target)).toBe(true);
  expect(repairing(records)).toEqual([]);
});

test('a place that still shows what is gone is found without a note', async () => {
  const id = await volumeAt('/a');
  table.set('/a', ownSource(id, 'older'));
  await repair();
  expect(shown(id, '/a')).toBe(true);
});

test('what somebody unmounted stays so', async () => {
  await volumeAt('/a');
  table.delete('/a');
  await repair();
  expect(table.has('/a')).toBe(false);
});

test('one volume that cannot be repaired keeps no other from it', async () => {
  const bad = await volumeAt('/bad');
  const good = await volumeAt('/good');
  served.clear();
  bindFails.add('/bad');
  await repair();
  expect(shown(good, '/good')).toBe(true);
  expect(shown(bad, '/bad')).toBe(false);
});

test('what is not known to be served counts as not repaired, and keeps no other from it', async () => {
  const silent = await volumeAt('/silent');
  const dead = await volumeAt('/dead');
  served.delete(table.get(stageOf(dead)) ?? '');
  unknown.add(stageOf(silent));
  const before = table.get('/silent');
  expect(await repair()).toEqual([silent]);
  expect(shown(dead, '/dead')).toBe(true);
  expect(table.get('/silent')).toBe(before);
  unknown.clear();
  expect(await repair()).toEqual([]);
});

test('options of the store that have changed meanwhile are not for those who have it mounted', async () => {
  const id = await volumeAt('/a');
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
  served.clear();
  stagedBy = [];
  expect(await repair()).toEqual([]);
  const anew = { ...known, hosts: ['other'], way: { ...way, ...moved } };
  expect(stagedBy).toEqual([anew]);
  expect(records.mounts.of(id).map((mount) => mount.source)).toEqual([JSON.parse(JSON.stringify(anew))]);
});
