import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { Volume } from '#core/model.ts';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { startServer } from '#testing/server.ts';
import { createOrphans } from './orphans.ts';
import { createStoresController } from './stores.ts';

const fixture = controllerFixture();
const clockAheadBy = (ms = 3_600_000) => ({ ...fixture.parts.clock, now: () => Date.now() + ms });

const createVolume = (name: string, extraLabels: Record<string, string> = {}, labels = {}): Promise<Volume> =>
  fixture.core.volumes.create(
    {
      store: 'silver',
      name,
      bytes: 1n,
      access: undefined,
      labels,
      ownLabels: {
        'stowage.dev/claim-uid': `uid-of-${name}`,
        'stowage.dev/cluster': fixture.core.instance,
        ...extraLabels,
      },
    },
    aCall({ requestId: `uid-of-${name}` }),
  );

async function searchOrphans(clock = clockAheadBy()): Promise<readonly string[]> {
  fixture.api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: 'nfs://server/x' } });
  const controller = fixture.start(createOrphans, { clock });
  await eventually(() => controller.counts().again).toBeGreaterThan(0);
  return (await fixture.volumes()).map(({ name }) => name);
}

test('an empty orphan is deleted; volumes that have or had a claim or a PersistentVolume stay', async () => {
  await createVolume('orphan');
  await createVolume('claimed');
  fixture.api.put(paths.claims, aClaim('claimed'));
  await createVolume('written');
  fixture.api.put(paths.volumes, {
    metadata: { name: 'pvc-uid-of-written' },
    spec: { claimRef: { uid: 'uid-of-written' } },
  });
  const { id } = await createVolume('handled');
  const csi = { driver: 'file.stowage.dev', volumeHandle: id };
  fixture.api.put(paths.volumes, { metadata: { name: 'by-hand' }, spec: { csi } });
  await createVolume('by-name');
  const csiByName = { driver: 'file.stowage.dev', volumeHandle: 'silver..by-name' };
  fixture.api.put(paths.volumes, { metadata: { name: 'also-by-hand' }, spec: { csi: csiByName } });
  await createVolume('retained', { 'stowage.dev/retained': 'true' });
  // This label comes from the claim: it does not mark the volume as retained.
  await createVolume('labelled', {}, { 'kubernetes.io/retained': 'true' });
  const plain = { store: 'silver', name: 'plain', bytes: 1n, access: undefined, labels: {} };
  await fixture.core.volumes.create(plain, aCall());
  const foreign = { 'stowage.dev/claim-uid': 'x', 'stowage.dev/cluster': 'another' };
  await fixture.core.volumes.create({ ...plain, name: 'foreign', ownLabels: foreign }, aCall());
  expect(await searchOrphans()).toEqual(['by-name', 'claimed', 'foreign', 'handled', 'plain', 'retained', 'written']);
  expect(await fixture.notes('OrphanedVolumes')).toEqual([]);
});

test.each<[string, (name: string) => void]>([
  ['a file', (name) => writeFileSync(join(fixture.silverFolder, name, 'x'), '')],
  ['a folder', (name) => mkdirSync(join(fixture.silverFolder, name, 'x'))],
])('an orphan that contains %s is reported and stays', async (_, fill) => {
  await createVolume('full');
  fill('full');
  expect(await searchOrphans()).toEqual(['full']);
  await eventually(async () => (await fixture.notes('OrphanedVolumes')).join()).toContain(
    '1 volumes belong to no claim and no PersistentVolume of this cluster, and contain or may contain data: full.',
  );
});

test('an empty orphan on a store that was added later is deleted too', async () => {
  const other = await startServer({ listen: 'none', kinds: [...fixture.parts.kinds.values()] });
  onTestFinished(() => other[Symbol.asyncDispose]());
  const uri = fixture.newStoreUri('gold');
  await other.core.stores.add('gold', uri, aCall());
  const ownLabels = { 'stowage.dev/claim-uid': 'uid-of-orphan', 'stowage.dev/cluster': fixture.core.instance };
  const spec = { store: 'gold', name: 'orphan', bytes: 1n, access: undefined, labels: {}, ownLabels };
  await other.core.volumes.create(spec, aCall());
  const orphans = fixture.start(createOrphans, { clock: clockAheadBy() });
  fixture.start(createStoresController);
  await eventually(
    () => fixture.caches.stores.synced && fixture.caches.claims.synced && fixture.caches.volumes.synced,
  ).toBe(true);
  fixture.api.put(paths.stores, { metadata: { name: 'gold' }, spec: { uri } });
  await eventually(() => orphans.counts().done + orphans.counts().again).toBeGreaterThan(0);
  await eventually(() => readdirSync(new URL(uri).pathname)).not.toContain('orphan');
});

test('a volume that was just created stays', async () => {
  await createVolume('young');
  expect(await searchOrphans(clockAheadBy(60_000))).toEqual(['young']);
});

test('a volume stays if its claim is not in the cache yet', async () => {
  await createVolume('claimed');
  let lists = 0;
  fixture.api.intercept = ({ url = '' }, response) => {
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

test('a volume stays if a PersistentVolume that is not in the cache yet refers to it by store and name', async () => {
  await createVolume('by-name');
  await createVolume('nobodys');
  let lists = 0;
  fixture.api.intercept = ({ url = '' }, response) => {
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
  await createVolume('orphan');
  fixture.nfs.close('changedByOthers.revisions', { store: 'silver' });
  fixture.api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: 'nfs://server/x' } });
  const controller = fixture.start(createOrphans, { clock: clockAheadBy() });
  await eventually(() => controller.counts().again).toBeGreaterThan(0);
  expect(await fixture.core.catalogue.resolve('silver..orphan', aCall())).toMatchObject({ name: 'orphan' });
});
