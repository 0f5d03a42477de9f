import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { createFakeEngine } from '#testing/fakes/container-engine.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { aCall, startServer } from '#testing/server.ts';
import type { SeenUse } from './model.ts';

test('what containers name is said on the store, whether they run or not, and taken back with the last', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-references-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const kinds = [createLocalStoreKind(), createNfsStoreKind(systemClock(), connectToDisk(folder))];
  const docker = createFakeEngine();
  const podman = createFakeEngine('podman');
  await using server = await startServer({ listen: 'none', kinds, engines: [docker, podman] });
  const { engine } = server;
  await engine.stores.add('silver', 'nfs://nowhere/export', aCall());
  const wanted = { store: 'silver', name: 'photos', bytes: undefined, access: undefined, labels: {} };
  const volume = await engine.volumes.create(wanted, aCall());
  const said = async (): Promise<readonly string[]> =>
    ((await engine.uses.of(volume, aCall())) as readonly SeenUse[]).flatMap(({ users }) =>
      users.map(({ kind, name }) => `${kind} ${name}`),
    );
  docker.run('web', { photos: 'stowage' });
  await vi.waitFor(async () => expect(await said()).toEqual(['container web']));
  podman.run('db', { 'silver..photos': 'stowage' }, false);
  await vi.waitFor(async () => expect(await said()).toEqual(['container web', 'container db']));
  await expect(engine.deletions.delete(volume.id, undefined, aCall())).rejects.toMatchObject({
    message: expect.stringMatching(/container web .*container db /),
  });
  docker.remove('web');
  podman.remove('db');
  await vi.waitFor(async () => expect(await said()).toEqual([]));
  await engine.deletions.delete(volume.id, undefined, aCall());
});
