import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { mountFuse } from '#clients/data-path/fuse-mount.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall, collectingLog, runMaintenance } from '#testing/core-calls.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createFakeEngine, type FakeEngine } from '#testing/fakes/container-engine.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { startServer, type TestServer } from '#testing/server.ts';
import type { LiveMount, Volume } from './model.ts';
import { ownSource } from './volume-staging.ts';

// Tests that need the kernel's mount table or the REST API, and therefore the whole program. Tests without a server are
// in the other files; they use src/testing/start-core.ts.

const plugin = 'stowage-local';

describe.skipIf(lacks('mount'))('an engine mount', () => {
  let server: TestServer;
  let docker: FakeEngine;
  let clock: FakeClock;
  let volume: Volume;

  beforeEach(async () => {
    docker = createFakeEngine();
    clock = createFakeClock();
    server = await startServer({ listen: 'none', engines: [docker], clock });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const newVolume = { store: undefined, name: 'photos', bytes: undefined, access: undefined, labels: {} };
    volume = await server.core.volumes.create(newVolume, aCall());
    await server.core.pluginNames.resolve(plugin, 'photos', aCall());
    onTestFinished(async () => {
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
  const restart = (): void => {
    clock.advance(1);
    docker.restart();
  };
  const settle = () => server.core.engineMounts.reconcile(aCall());
  /** Before an unmount, Stowage gives a process with open files some time, by this clock. */
  const reconcileWithClock = async (): Promise<void> => {
    let isOver = false;
    const settled = settle().finally(() => {
      isOver = true;
    });
    while (!isOver) {
      clock.advance(100);
      await new Promise((resolve) => setImmediate(resolve));
    }
    await settled;
  };
  /** Docker unmounts the volume before it reports the end of the container. */
  const endContainer = async (name: string): Promise<void> => {
    docker.run(name, { photos: plugin }, false);
    await expect.poll(path).toBeUndefined();
  };

  test('is shared by all requests for a volume, and is unmounted with the last one', async () => {
    docker.run('web', { photos: plugin });
    const mountPoint = await hold('1');
    expect(await hold('2')).toBe(mountPoint);
    await writeFile(join(mountPoint, 'file'), 'text');
    expect(await readFile(join(server.storeFolder, 'photos', 'file'), 'utf8')).toBe('text');
    expect(await server.core.mounts.list(aCall())).toHaveLength(1);
    await unmount('2');
    await unmount('never');
    expect(path()).toBe(mountPoint);
    await unmount('1');
    await endContainer('web');
    // A container that starts later must not find an empty folder instead of the volume.
    expect(existsSync(mountPoint)).toBe(false);
  });

  test('stays recorded when it cannot be unmounted, and is retried later', async () => {
    docker.run('web', { photos: plugin }, false);
    const mountPoint = await hold('1');
    restart();
    await settle();
    clock.advance(60_000);
    const workingFolder = process.cwd();
    process.chdir(mountPoint);
    try {
      await reconcileWithClock();
    } finally {
      process.chdir(workingFolder);
    }
    expect(server.core.engineMounts.isHeld(volume.id, mountPoint)).toBe(true);
    // Programs that other tests started meanwhile inherited the working folder, and one of them may still run.
    await expect.poll(() => reconcileWithClock().then(path)).toBeUndefined();
    expect(server.core.engineMounts.isHeld(volume.id, mountPoint)).toBe(false);
  });
});

describe.skipIf(lacks('mount'))('with the mount table of the kernel', () => {
  let server: TestServer;
  let kind: GatedKind;

  beforeEach(async () => {
    kind = gated(createLocalStoreKind());
    server = await startServer({ listen: 'none', kinds: [kind] });
    // Stopping unmounts all volumes that are not in use.
    onTestFinished(() => server[Symbol.asyncDispose]());
  });

  const create = (name: string): Promise<Volume> =>
    server.core.volumes.create({ store: undefined, name, bytes: 10n, access: undefined, labels: {} }, aCall());
  // Outside the state folder, where Stowage refuses to mount.
  const pathOf = (name: string): string => `${server.folder}-${name}`;
  const mount = (ref: string, target: string, readOnly = false): Promise<LiveMount> =>
    server.core.mounts.publish(ref, target, { readOnly, user: undefined }, aCall());

  test('a mounted volume can be neither deleted nor renamed, and the error names the target', async () => {
    const { id } = await create('a');
    await mount('a', pathOf('m'));
    await writeFile(join(pathOf('m'), 'file'), 'text');
    expect(await readFile(join(server.storeFolder, 'a', 'file'), 'utf8')).toBe('text');
    for (const attempt of [
      () => server.core.deletions.delete(id, undefined, aCall()),
      () => server.core.volumes.rename(id, 'b', undefined, aCall()),
    ]) {
      await expect(attempt()).rejects.toMatchObject({
        code: 'in-use',
        message: expect.stringContaining(`it is used by path ${pathOf('m')} on`),
        action: 'Unmount it there first: stowage unmount PATH',
      });
    }
    await server.core.mounts.unpublish(pathOf('m'), id, aCall());
    expect(await server.core.mounts.list(aCall())).toEqual([]);
    await server.core.deletions.delete(id, undefined, aCall());
  });

  describe('a target that contains a symbolic link', () => {
    const byLink = (): string => join(pathOf('link'), 'm');

    beforeEach(async () => {
      await mkdir(pathOf('real'));
      await symlink(pathOf('real'), pathOf('link'));
      onTestFinished(async () => {
        for (const name of ['link', 'real']) await rm(pathOf(name), { recursive: true });
      });
    });

    test.skipIf(lacks('fuse'))('can be unmounted although the mount is dead', async () => {
      const { id } = await create('a');
      const { target } = await mount('a', byLink());
      execFileSync('umount', [target]);
      await using _silent = await mountFuse(ownSource(id, '1'), target, { readOnly: false });
      await server.core.mounts.unpublish(byLink(), id, aCall());
      expect(await server.core.mounts.list(aCall())).toEqual([]);
      expect(await readFile('/proc/self/mountinfo', 'utf8')).not.toContain(` ${target} `);
    });
  });

  test('a mount of a volume without a record can be unmounted by callers that may see every store', async () => {
    await using own = await startServer();
    const { body } = await own.admin.post('/v1/volumes', { name: 'a' });
    const target = `${own.folder}-m`;
    expect((await own.admin.post(`/v1/volumes/${body.id}/mount`, { target })).status).toBe(200);
    own.core.records.volumes.forgetStore('local' as Volume['store']);
    const scoped = await own.as('admin', 'local');
    expect((await scoped.post(`/v1/volumes/${body.id}/unmount`, { target })).status).toBe(403);
    expect(await own.core.mounts.list(aCall())).toMatchObject([{ mounted: true }]);
    expect((await own.admin.post(`/v1/volumes/${body.id}/unmount`, { target })).status).toBe(204);
    expect(await own.core.mounts.list(aCall())).toEqual([]);
  });

  test('a volume that is renamed while a mount waits is mounted under its new name', async () => {
    const { id } = await create('a');
    const gate = kind.close('rename');
    const renamed = server.core.volumes.rename(id, 'b', undefined, aCall());
    await gate.reached;
    const mounting = mount('a', pathOf('m'));
    await new Promise((resolve) => setImmediate(resolve));
    gate.open();
    await renamed;
    expect(await mounting).toMatchObject({ volumeId: id, mounted: true });
    await writeFile(join(pathOf('m'), 'file'), '');
    expect(await readdir(join(server.storeFolder, 'b'))).toEqual(['file']);
  });

  test('stopping unmounts idle volumes and removes the directories that Stowage created', async () => {
    await create('a');
    await mount('a', pathOf('m'));
    expect(await server.stop()).toEqual([]);
    expect(await readdir(join(server.folder, 'mounts'))).toEqual([]);
    await expect(readdir(pathOf('m'))).rejects.toMatchObject({ code: 'ENOENT' });
  });
});

describe('the trash', () => {
  const day = 86_400_000;

  test('lists an entry whose date cannot be read, never expires it, and restores it', async () => {
    const clock = createFakeClock();
    await using server = await startServer({ listen: 'none', clock, kinds: [createLocalStoreKind(clock)] });
    const root = join(server.folder, 'keep');
    await mkdir(root);
    await server.core.stores.add('keep', `local://${root}?onDelete=archive&retention=2d`, aCall());
    const newVolume = { store: 'keep', name: 'a', bytes: undefined, access: undefined, labels: {} };
    const { id } = await server.core.volumes.create(newVolume, aCall());
    await server.core.deletions.delete(id, undefined, aCall());
    const trash = () => server.core.deletions.trashOf('keep', aCall());
    const record = join(root, '.stowage', 'trash', id, 'meta');
    await writeFile(record, (await readFile(record, 'utf8')).replace(/"expiresAt":\d+/, '"expiresAt":"soon"'));
    const log = collectingLog();
    clock.advance(365 * day);
    for (let round = 0; round < 2; round++) await runMaintenance(server.core, aCall({ log }));
    expect(log.lines.filter((line) => line.includes('never expires'))).toHaveLength(1);
    expect(await trash()).toMatchObject([{ volume: { id }, expiresAt: undefined }]);
    expect(await server.admin.get('/v1/trash')).toMatchObject({ body: { items: [{ id, expiresAt: null }] } });
    expect((await server.core.deletions.restore(id, undefined, () => true, aCall())).id).toBe(id);
  });
});
