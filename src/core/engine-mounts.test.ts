import { existsSync } from 'node:fs';
import { mkdtempDisposable, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { aCall, collectingLog } from '#testing/core-calls.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createFakeEngine, type FakeEngine } from '#testing/fakes/container-engine.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import { engineMountKey } from './lock-keys.ts';
import type { Volume } from './model.ts';

const plugin = 'stowage-local';
const podmanHold = '2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2';

describe('an engine mount', () => {
  let server: TestCore;
  let docker: FakeEngine;
  let clock: FakeClock;
  let log: ReturnType<typeof collectingLog>;
  let volume: Volume;

  beforeEach(async () => {
    docker = createFakeEngine();
    clock = createFakeClock();
    log = collectingLog();
    server = await startCore({ engines: [docker], clock, log });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const newVolume = { store: undefined, name: 'photos', bytes: undefined, access: undefined, labels: {} };
    volume = await server.core.volumes.create(newVolume, aCall());
    await server.core.pluginNames.resolve(plugin, 'photos', aCall());
    onTestFinished(async () => {
      docker.isDown = false;
      for (const name of ['web', 'db']) docker.remove(name);
      restart();
      await server.core.engineMounts.reconcile(aCall());
      clock.advance(600_000);
      await server.core.engineMounts.reconcile(aCall());
    });
  });

  const hold = (id: string): Promise<string> => server.core.engineMounts.mount(volume, plugin, id, aCall());
  const unmount = (id: string): Promise<void> => server.core.engineMounts.unmount(volume.id, plugin, id, aCall());
  const path = (): string | undefined => server.core.engineMounts.pathOf(volume.id);
  const remove = () => server.core.deletions.delete(volume.id, undefined, aCall());
  const restart = (): void => {
    clock.advance(1);
    docker.restart();
  };
  const settle = () => server.core.engineMounts.reconcile(aCall());
  /** Docker unmounts the volume before it reports the end of the container. */
  const endContainer = async (name: string): Promise<void> => {
    docker.run(name, { photos: plugin }, false);
    await expect.poll(path).toBeUndefined();
  };

  test('stays for a container whose volumes `docker cp` mounts once more, under the same id', async () => {
    docker.run('web', { photos: plugin });
    const mountPoint = await hold('1');
    await hold('1');
    await unmount('1');
    expect(path()).toBe(mountPoint);
    await unmount('1');
    await endContainer('web');
  });

  test('stays while one of its containers runs, whatever its count', async () => {
    docker.run('web', { photos: plugin });
    docker.run('db', { photos: plugin });
    const mountPoint = await hold('1');
    // A created container that has not started mounts nothing.
    docker.run('new', { photos: plugin }, true, false);
    await unmount('1');
    expect(path()).toBe(mountPoint);
    docker.run('db', { photos: plugin }, false);
    await settle();
    expect(path()).toBe(mountPoint);
    await endContainer('web');
    docker.remove('new');
  });

  test('is unmounted when the engine lists the container as ended, without a further event', async () => {
    docker.run('web', { photos: plugin });
    const mountPoint = await hold('1');
    await unmount('1');
    expect(path()).toBe(mountPoint);
    docker.isQuiet = true;
    docker.run('web', { photos: plugin }, false);
    clock.advance(50);
    await expect.poll(path).toBeUndefined();
  });

  test('is dropped even if another volume before it is stuck', async () => {
    const newVolume = { store: undefined, name: 'films', bytes: undefined, access: undefined, labels: {} };
    const films = await server.core.volumes.create(newVolume, aCall());
    await hold('1');
    await server.core.engineMounts.mount(films, plugin, '2', aCall());
    restart();
    await settle();
    clock.advance(600_000);
    using _stuck = await server.core.operations.lock([engineMountKey(volume.id)], aCall().signal);
    const reconcileAbort = new AbortController();
    const settling = server.core.engineMounts.reconcile(aCall({ signal: reconcileAbort.signal }));
    await expect.poll(() => server.core.engineMounts.pathOf(films.id)).toBeUndefined();
    reconcileAbort.abort();
    await settling;
    expect(path()).toBeDefined();
  });

  test('stays recorded when it cannot be unmounted, and is retried later', async () => {
    docker.run('web', { photos: plugin }, false);
    const mountPoint = await hold('1');
    restart();
    await settle();
    clock.advance(60_000);
    {
      using _program = server.kept.mounts.use(mountPoint);
      await settle();
    }
    expect(server.core.engineMounts.isHeld(volume.id, mountPoint)).toBe(true);
    await settle();
    expect(path()).toBeUndefined();
    expect(server.core.engineMounts.isHeld(volume.id, mountPoint)).toBe(false);
  });

  test('is logged once if its engine does not list a container for it within a minute', async () => {
    await hold('1');
    await settle();
    expect(log.lines.filter((line) => line.includes('does not list'))).toEqual([]);
    for (const ms of [60_000, 60_000]) {
      clock.advance(ms);
      await settle();
    }
    const warnings = log.lines.filter((line) => line.includes('does not list'));
    expect(warnings).toEqual([expect.stringMatching(/^warn .*"action":".*second engine/)]);
    await unmount('1');
  });

  test('needs a single unmount from Podman, however often Podman mounted it', async () => {
    await hold(podmanHold);
    await hold(podmanHold);
    await unmount(podmanHold);
    expect(path()).toBeUndefined();
  });

  test('cannot be unmounted by others without force', async () => {
    docker.run('web', { photos: plugin });
    const mountPoint = await hold('1');
    await expect(server.core.mounts.unpublish(mountPoint, volume.id, aCall())).rejects.toMatchObject({
      reason: 'mount-held',
    });
    await server.core.mounts.unpublish(mountPoint, volume.id, aCall(), { force: true });
    await settle();
    expect(path()).toBeUndefined();
  });

  test('stays when Stowage stops, and is known after the next start', async () => {
    // On the system clock, because a stop takes time.
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-holds-'));
    const startOptions = { engines: [docker], folder: folder.path };
    const first = await startCore(startOptions);
    const newVolume = { store: undefined, name: 'photos', bytes: undefined, access: undefined, labels: {} };
    const storedVolume = await first.core.volumes.create(newVolume, aCall());
    docker.run('web', { photos: plugin });
    const mountPoint = await first.core.engineMounts.mount(storedVolume, plugin, '1', aCall());
    expect(await first.stop()).toEqual([expect.stringContaining('containers use it')]);
    await first[Symbol.asyncDispose]();
    expect(existsSync(mountPoint)).toBe(true);
    await using restarted = await startCore({ ...startOptions, after: first });
    expect(restarted.core.engineMounts.pathOf(storedVolume.id)).toBe(mountPoint);
    await restarted.core.engineMounts.unmount(storedVolume.id, plugin, '1', aCall());
    docker.remove('web');
    await expect.poll(() => restarted.core.mounts.list(aCall())).toEqual([]);
  });

  test('is dropped if no container references the volume and the engine or Stowage was restarted', async () => {
    docker.run('web', { photos: plugin });
    await hold('1');
    docker.isDown = true;
    docker.remove('web');
    restart();
    await settle();
    clock.advance(60_000);
    await settle();
    expect(path()).toBeDefined();
    docker.isDown = false;
    await settle();
    clock.advance(60_000);
    await settle();
    expect(path()).toBeUndefined();
  });

  test('stays while Docker fills it for a container that it does not list yet', async () => {
    await hold('1');
    await settle();
    clock.advance(500_000);
    await settle();
    expect(path()).toBeDefined();
    await expect(remove()).rejects.toMatchObject({ code: 'in-use' });
    await unmount('1');
    await remove();
  });

  test('is dropped only after a while if all its containers are stopped, since one may be starting', async () => {
    docker.run('web', { photos: plugin }, false);
    await hold('1');
    restart();
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

  test('of an engine that is not configured is never dropped', async () => {
    await server.core.engineMounts.mount(volume, plugin, podmanHold, aCall());
    await settle();
    clock.advance(600_000);
    await settle();
    expect(path()).toBeDefined();
    await unmount(podmanHold);
    expect(path()).toBeUndefined();
  });

  test('that a crash left behind does not prevent deleting the volume', async () => {
    docker.run('web', { photos: plugin });
    await hold('1');
    docker.remove('web');
    restart();
    await remove();
    expect(server.core.records.volumes.byId(volume.id)).toBeUndefined();
    expect(await server.core.mounts.list(aCall())).toEqual([]);
  });

  test('that an engine requests again after it was killed has no certain count', async () => {
    docker.run('web', { photos: plugin });
    await hold('1');
    // A killed engine loses its mount count, but keeps its mount id.
    clock.advance(1);
    docker.restart();
    clock.advance(1);
    await hold('1');
    await unmount('1');
    docker.remove('web');
    expect(await remove()).toMatchObject({ outcome: 'deleted' });
    expect(path()).toBeUndefined();
  });

  test('of a volume that another host destroyed can be unmounted by name, and is dropped when no container references it', async () => {
    docker.run('web', { photos: plugin });
    await hold('1');
    await hold('2');
    server.core.records.volumes.remove(volume.id);
    for (const name of ['photos', 'photos.meta']) await rm(join(server.storeFolder, name), { recursive: true });
    // Engines look a volume up before they unmount it.
    await expect(server.core.pluginNames.resolve(plugin, 'photos', aCall())).rejects.toMatchObject({
      code: 'not-found',
    });
    expect(server.core.pluginNames.recordedId(plugin, 'photos')).toBe(volume.id);
    await unmount('1');
    await settle();
    expect(path()).toBeDefined();
    docker.remove('web');
    await settle();
    expect(path()).toBeUndefined();
    // No mount needs the name any longer.
    await expect(server.core.pluginNames.resolve(plugin, 'photos', aCall())).rejects.toMatchObject({
      code: 'not-found',
    });
    expect(server.core.pluginNames.recordedId(plugin, 'photos')).toBeUndefined();
  });

  test('is not required to block a deletion: a stopped container that references the volume is enough, and is named', async () => {
    docker.run('web', { photos: plugin }, false);
    await expect(remove()).rejects.toMatchObject({
      code: 'in-use',
      reason: 'volume-in-use',
      action: expect.stringContaining('docker rm'),
      message: expect.stringContaining('it is used by container web on'),
    });
    docker.isDown = true;
    await expect(remove()).rejects.toMatchObject({ message: expect.stringContaining('container web') });
    docker.isDown = false;
    docker.remove('web');
    await remove();
  });

  test('that may exist in an engine that does not answer blocks deleting and renaming the volume', async () => {
    docker.isDown = true;
    const unknown = {
      code: 'unavailable',
      reason: 'volume-use-unknown',
      action: expect.stringContaining('--docker-socket none'),
      message: expect.stringContaining('unknown whether containers of docker use it: '),
    };
    await expect(remove()).rejects.toMatchObject(unknown);
    await expect(server.core.volumes.rename(volume.id, 'films', undefined, aCall())).rejects.toMatchObject(unknown);
    docker.isDown = false;
    await remove();
  });

  test('that an engine may request for a container that it is creating delays a deletion', async () => {
    const { signal } = aCall();
    const note = (): Promise<string | undefined> =>
      Promise.race([
        server.core.engineRequests.note(volume.id, signal),
        new Promise<undefined>((done) => setImmediate(() => done(undefined))),
      ]);
    // Before the deletion, the request is recorded at once.
    expect(await note()).toBe('noted');
    const deletion = remove();
    // During the deletion, the request waits.
    await expect.poll(note).toBeUndefined();
    docker.run('web', { photos: plugin }, false);
    clock.advance(1_000);
    await expect(deletion).rejects.toMatchObject({ message: expect.stringContaining('container web') });
  });

  test('does not wait for a deletion that waits for the engine', async () => {
    await hold('1');
    const { containers } = docker;
    const [asked, silence] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    docker.containers = async (scope) => {
      asked.resolve();
      await silence.promise;
      return await containers(scope);
    };
    const deletion = remove();
    await asked.promise;
    await hold('2');
    silence.resolve();
    await expect(deletion).rejects.toMatchObject({ code: 'in-use' });
    for (const id of ['1', '2']) await unmount(id);
  });

  test('that fails leaves no record behind', async () => {
    const missingVolume = { ...volume, id: 'sv1-00000000-0000-0000-0000-000000000000' as Volume['id'] };
    await expect(server.core.engineMounts.mount(missingVolume, plugin, '1', aCall())).rejects.toMatchObject({
      code: 'not-found',
    });
    expect(server.core.engineMounts.isHeld(missingVolume.id, join(server.folder, 'published', missingVolume.id))).toBe(
      false,
    );
  });
});
