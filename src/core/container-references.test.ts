import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import { openRecords } from '#records/sqlite.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall, waitForOptions } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createFakeEngine } from '#testing/fakes/container-engine.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { startCore } from '#testing/start-core.ts';
import { createContainerReferences } from './container-references.ts';
import type { SeenUse, VolumeId } from './model.ts';

test('publishes running and stopped containers as users on the store, and removes the record with the last container', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-references-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const kinds = [createLocalStoreKind(), createNfsStoreKind(systemClock(), connectToDisk(folder))];
  const docker = createFakeEngine();
  const podman = createFakeEngine('podman');
  await using server = await startCore({ kinds, engines: [docker, podman] });
  const { core } = server;
  await core.stores.add('silver', 'nfs://nowhere/export', aCall());
  const newVolume = { store: 'silver', name: 'photos', bytes: undefined, access: undefined, labels: {} };
  const volume = await core.volumes.create(newVolume, aCall());
  const publishedUsers = async (): Promise<readonly string[]> =>
    ((await core.uses.list(volume, aCall())) as readonly SeenUse[]).flatMap(({ users }) =>
      users.map(({ kind, name }) => `${kind} ${name}`),
    );
  docker.run('web', { photos: 'stowage' });
  await vi.waitFor(async () => expect(await publishedUsers()).toEqual(['container web']), waitForOptions);
  podman.run('db', { 'silver..photos': 'stowage' }, false);
  await vi.waitFor(
    async () => expect(await publishedUsers()).toEqual(['container web', 'container db']),
    waitForOptions,
  );
  await expect(core.deletions.delete(volume.id, undefined, aCall())).rejects.toMatchObject({
    message: expect.stringMatching(/container web .*container db /),
  });
  docker.remove('web');
  podman.remove('db');
  await vi.waitFor(async () => expect(await publishedUsers()).toEqual([]), waitForOptions);
  await core.deletions.delete(volume.id, undefined, aCall());
});

test('counts containers that use Stowage under another plugin name', async () => {
  const docker = createFakeEngine();
  await using server = await startCore({ engines: [docker] });
  const { core } = server;
  const create = (name: string) =>
    core.volumes.create({ store: undefined, name, bytes: undefined, access: undefined, labels: {} }, aCall());
  const [photos, films] = [await create('photos'), await create('films')];
  // `web` refers to its volume by the name that the engine uses, `db` by the volume's own name.
  await core.pluginNames.resolve('stowage-local', 'local..photos', aCall());
  docker.run('web', { 'local..photos': undefined, other: undefined });
  docker.run('db', { films: undefined }, false);
  for (const [volume, name] of [
    [photos, 'web'],
    [films, 'db'],
  ] as const)
    await expect(core.deletions.delete(volume.id, undefined, aCall())).rejects.toMatchObject({
      code: 'in-use',
      message: expect.stringContaining(`it is used by container ${name} on`),
    });
  expect(core.references.isLive(photos.id)).toBe(true);
  docker.remove('web');
  docker.remove('db');
  for (const { id } of [photos, films]) await core.deletions.delete(id, undefined, aCall());
});

test('a store that does not answer does not make the engine appear unresponsive', async () => {
  const records = openRecords(':memory:');
  onTestFinished(() => records.close());
  const docker = createFakeEngine();
  const clock = createFakeClock();
  const lookupStarted = Promise.withResolvers<void>();
  const resolve = (_plugin: string, _name: string, { signal }: Scope): Promise<never> => {
    lookupStarted.resolve();
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  };
  const references = createContainerReferences({
    records,
    clock,
    engines: [docker],
    log: silentLog(),
    names: { resolve },
    changed: () => undefined,
  });
  for (let i = 0; i < 10; i++) docker.run(`c${i}`, { [`never${i}`]: 'stowage-local' });
  const report = references.query('sv1-00000000-0000-0000-0000-000000000000' as VolumeId, aCall());
  await lookupStarted.promise;
  clock.advance(1_000);
  expect(await report).toMatchObject({ silent: [], references: [] });
});
