import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { Volume } from '#core/model.ts';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { startServer } from '#testing/server.ts';
import { createOrphans } from './orphans.ts';
import { createStoresController } from './stores.ts';

const it = controllerFixture();
const later = (ms = 3_600_000) => ({ ...it.parts.clock, now: () => Date.now() + ms });

const make = (name: string, own: Record<string, string> = {}, labels = {}): Promise<Volume> =>
  it.core.volumes.create(
    {
      store: 'silver',
      name,
      bytes: 1n,
      access: undefined,
      labels,
      ownLabels: { 'stowage.dev/claim-uid': `uid-of-${name}`, 'stowage.dev/cluster': it.core.instance, ...own },
    },
    aCall({ requestId: `uid-of-${name}` }),
  );

async function searchOrphans(clock = later()): Promise<readonly string[]> {
  it.api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: 'nfs://server/x' } });
  const controller = it.start(createOrphans, { clock });
  await eventually(() => controller.counts().again).toBeGreaterThan(0);
  return (await it.volumes()).map(({ name }) => name);
}

test('an empty orphan is deleted; volumes that are or were in use stay', async () => {
  await make('orphan');
  await make('claimed');
  it.api.put(paths.claims, aClaim('claimed'));
  await make('written');
  it.api.put(paths.volumes, {
    metadata: { name: 'pvc-uid-of-written' },
    spec: { claimRef: { uid: 'uid-of-written' } },
  });
  const { id } = await make('handled');
  const csi = { driver: 'file.stowage.dev', volumeHandle: id };
  it.api.put(paths.volumes, { metadata: { name: 'by-hand' }, spec: { csi } });
  await make('by-name');
  const named = { driver: 'file.stowage.dev', volumeHandle: 'silver..by-name' };
  it.api.put(paths.volumes, { metadata: { name: 'also-by-hand' }, spec: { csi: named } });
  await make('retained', { 'stowage.dev/retained': 'true' });
  // This label belongs to the claim, and says nothing about the volume.
  await make('labelled', {}, { 'kubernetes.io/retained': 'true' });
  const plain = { store: 'silver', name: 'plain', bytes: 1n, access: undefined, labels: {} };
  await it.core.volumes.create(plain, aCall());
  const foreign = { 'stowage.dev/claim-uid': 'x', 'stowage.dev/cluster': 'another' };
  await it.core.volumes.create({ ...plain, name: 'foreign', ownLabels: foreign }, aCall());
  expect(await searchOrphans()).toEqual(['by-name', 'claimed', 'foreign', 'handled', 'plain', 'retained', 'written']);
  expect(await it.notes('OrphanedVolumes')).toEqual([]);
});

test.each<[string, (name: string) => void]>([
  ['a file', (name) => writeFileSync(join(it.silver, name, 'x'), '')],
  ['a folder', (name) => mkdirSync(join(it.silver, name, 'x'))],
])('an orphan that contains %s is reported and stays', async (_, fill) => {
  await make('full');
  fill('full');
  expect(await searchOrphans()).toEqual(['full']);
  await eventually(async () => (await it.notes('OrphanedVolumes')).join()).toContain(
    '1 volumes belong to no claim and no PersistentVolume of this cluster, and contain or may contain data: full.',
  );
});

test('an empty orphan on a store that was added later is deleted too', async () => {
  const other = await startServer({ listen: 'none', kinds: [...it.parts.kinds.values()] });
  onTestFinished(() => other[Symbol.asyncDispose]());
  const uri = it.place('gold');
  await other.core.stores.add('gold', uri, aCall());
  const ownLabels = { 'stowage.dev/claim-uid': 'uid-of-orphan', 'stowage.dev/cluster': it.core.instance };
  const wanted = { store: 'gold', name: 'orphan', bytes: 1n, access: undefined, labels: {}, ownLabels };
  await other.core.volumes.create(wanted, aCall());
  const orphans = it.start(createOrphans, { clock: later() });
  it.start(createStoresController);
  await eventually(() => it.caches.stores.synced && it.caches.claims.synced && it.caches.volumes.synced).toBe(true);
  it.api.put(paths.stores, { metadata: { name: 'gold' }, spec: { uri } });
  await eventually(() => orphans.counts().done + orphans.counts().again).toBeGreaterThan(0);
  await eventually(() => readdirSync(new URL(uri).pathname)).not.toContain('orphan');
});

test('a volume that was just created stays', async () => {
  await make('young');
  expect(await searchOrphans(later(60_000))).toEqual(['young']);
});

test('a volume whose claim only the API server knows stays', async () => {
  await make('claimed');
  let lists = 0;
  it.api.intercept = ({ url = '' }, response) => {
    if (!url.startsWith('/api/v1/persistentvolumeclaims?limit') || url.includes('watch')) return false;
    lists++;
    const items = lists === 1 ? [] : [aClaim('claimed')];
    const list = { kind: 'List', metadata: { resourceVersion: '100' }, items };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
    return true;
  };
  expect(await searchOrphans()).toEqual(['claimed']);
  expect(lists).toBe(2);
});

test('a volume stays if only the API server knows a PersistentVolume that refers to it by store and name', async () => {
  await make('by-name');
  await make('nobodys');
  let lists = 0;
  it.api.intercept = ({ url = '' }, response) => {
    if (!url.startsWith(`${paths.volumes}?limit`) || url.includes('watch')) return false;
    lists++;
    if (lists === 1) return false;
    const csi = { driver: 'file.stowage.dev', volumeHandle: 'silver..by-name' };
    const items = [{ metadata: { name: 'by-hand' }, spec: { csi } }];
    const list = { kind: 'List', metadata: { resourceVersion: '100' }, items };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
    return true;
  };
  expect(await searchOrphans()).toEqual(['by-name']);
});

test('a volume on a store that does not answer stays', async () => {
  await make('orphan');
  it.nfs.close('changedByOthers.revisions', { store: 'silver' });
  it.api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: 'nfs://server/x' } });
  const controller = it.start(createOrphans, { clock: later() });
  await eventually(() => controller.counts().again).toBeGreaterThan(0);
  expect(await it.core.catalogue.resolve('silver..orphan', aCall())).toMatchObject({ name: 'orphan' });
});
