import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createFakeEngine, type FakeEngine } from '#testing/fakes/container-engine.ts';
import { aCall, startServer, type TestServer } from '#testing/server.ts';
import type { Volume } from './model.ts';

const plugin = 'stowage-local';

describe.skipIf(needs('mount'))('what engines have mounted', () => {
  let server: TestServer;
  let docker: FakeEngine;
  let clock: FakeClock;
  let volume: Volume;
  let isStopped: boolean;

  beforeEach(async () => {
    isStopped = false;
    docker = createFakeEngine();
    clock = createFakeClock();
    server = await startServer({ listen: 'none', engines: [docker], clock });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const wanted = { store: undefined, name: 'photos', bytes: undefined, access: undefined, labels: {} };
    volume = await server.engine.volumes.create(wanted, aCall());
    await server.engine.engineNames.resolve(plugin, 'photos', aCall());
    onTestFinished(async () => {
      if (isStopped) return;
      docker.isDown = false;
      for (const name of ['web', 'db']) docker.remove(name);
      await server.engine.holds.settle(aCall());
    });
  });

  const hold = (id: string): Promise<string> => server.engine.holds.hold(volume, plugin, id, aCall());
  const letGo = (id: string): Promise<void> => server.engine.holds.letGo(volume.id, plugin, id, aCall());
  const path = (): string | undefined => server.engine.holds.pathOf(volume.id);
  const remove = () => server.engine.deletions.delete(volume.id, undefined, aCall());
  const settle = () => server.engine.holds.settle(aCall());

  test('is one mount, however many ask for it, and goes with the last of them', async () => {
    docker.run('web', { photos: plugin });
    const at = await hold('1');
    expect(await hold('2')).toBe(at);
    expect(await hold('2')).toBe(at);
    await writeFile(join(at, 'file'), 'text');
    expect(await readFile(join(server.storeFolder, 'photos', 'file'), 'utf8')).toBe('text');
    expect(await server.engine.mounts.list(aCall())).toHaveLength(1);
    await letGo('2');
    await letGo('never');
    expect(path()).toBe(at);
    await letGo('1');
    expect(path()).toBeUndefined();
    // A container that is started after all must not find an empty folder in the volume's place.
    expect(existsSync(at)).toBe(false);
  });

  test('is nothing for an engine whose containers could not use the files', async () => {
    docker.remapsUsers = async () => true;
    clock.advance(600_001);
    await settle();
    await expect(hold('1')).rejects.toMatchObject({ reason: 'engine-remaps-users' });
    expect(path()).toBeUndefined();
  });

  test('cannot be unmounted by others, unless they insist', async () => {
    docker.run('web', { photos: plugin });
    const at = await hold('1');
    await expect(server.engine.mounts.unpublish(at, volume.id, aCall())).rejects.toMatchObject({
      reason: 'mount-held',
    });
    await server.engine.mounts.unpublish(at, volume.id, aCall(), { force: true });
    await settle();
    expect(path()).toBeUndefined();
  });

  test('stays when Stowage stops, and is known after the next start', async () => {
    docker.run('web', { photos: plugin });
    const at = await hold('1');
    const { folder } = server;
    isStopped = true;
    expect(await server.stop()).toEqual([expect.stringContaining('containers use it')]);
    expect(existsSync(at)).toBe(true);
    await using again = await startServer({ listen: 'none', engines: [docker], folder });
    expect(again.engine.holds.pathOf(volume.id)).toBe(at);
    await again.engine.holds.letGo(volume.id, plugin, '1', aCall());
    expect(await again.engine.mounts.list(aCall())).toEqual([]);
  });

  test('is dropped at once when no container names the volume, and its engine says so', async () => {
    docker.run('web', { photos: plugin });
    await hold('1');
    docker.isDown = true;
    docker.remove('web');
    await settle();
    expect(path()).toBeDefined();
    docker.isDown = false;
    await settle();
    expect(path()).toBeUndefined();
  });

  test('is dropped only after a while when its containers are all stopped: one may be starting', async () => {
    docker.run('web', { photos: plugin }, false);
    await hold('1');
    await settle();
    clock.advance(59_000);
    await settle();
    expect(path()).toBeDefined();
    docker.run('db', { photos: plugin });
    clock.advance(59_000);
    await settle();
    docker.run('db', { photos: plugin }, false);
    await settle();
    clock.advance(59_000);
    await settle();
    expect(path()).toBeDefined();
    clock.advance(1_000);
    await settle();
    expect(path()).toBeUndefined();
  });

  test('of an engine that nobody told us of is never dropped', async () => {
    await server.engine.holds.hold(
      volume,
      plugin,
      '2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2',
      aCall(),
    );
    await settle();
    clock.advance(600_000);
    await settle();
    expect(path()).toBeDefined();
    await letGo('2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2');
    expect(path()).toBeUndefined();
  });

  test('that a crash left does not keep the volume from being deleted', async () => {
    docker.run('web', { photos: plugin });
    await hold('1');
    docker.remove('web');
    await remove();
    expect(server.engine.records.volumes.byId(volume.id)).toBeUndefined();
    expect(await server.engine.mounts.list(aCall())).toEqual([]);
  });

  test('a volume that a stopped container names is not deleted, and the message names it', async () => {
    docker.run('web', { photos: plugin }, false);
    await expect(remove()).rejects.toMatchObject({
      ...{ code: 'in-use', reason: 'volume-in-use', action: expect.stringContaining('docker rm') },
      message: expect.stringContaining('it is used by container web on'),
    });
    docker.isDown = true;
    await expect(remove()).rejects.toMatchObject({ message: expect.stringContaining('container web') });
    docker.isDown = false;
    docker.remove('web');
    await remove();
  });

  test('a mount that fails leaves no hold behind', async () => {
    const gone = { ...volume, id: 'sv1-00000000-0000-0000-0000-000000000000' as Volume['id'] };
    await expect(server.engine.holds.hold(gone, plugin, '1', aCall())).rejects.toMatchObject({ code: 'not-found' });
    expect(server.engine.holds.isHeld(gone.id, join(server.folder, 'published', gone.id))).toBe(false);
  });
});
