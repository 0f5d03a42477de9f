import { execFileSync } from 'node:child_process';
import { closeSync, existsSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { openRecords } from '#records/sqlite.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall, runMaintenance } from '#testing/core-calls.ts';
import { attachImage } from '#testing/loop-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { startServer, type TestServer } from '#testing/server.ts';
import type { LiveMount, Operation, Volume } from './model.ts';
import { newOperationId } from './names.ts';

let ground: ScratchFolder;
const pathOf = (name: string): string => join(ground.folder, name);
const image = (name = 'a'): string => pathOf(`images/${name}.img`);

beforeEach(() => {
  ground = createScratchFolder();
  onTestFinished(() => ground[Symbol.dispose]());
  for (const name of ['state', 'images']) mkdirSync(pathOf(name));
});

/** Starts a server on the same state. */
async function start(): Promise<TestServer> {
  const server = await startServer({ folder: pathOf('state'), listen: 'none' });
  onTestFinished(() => server[Symbol.asyncDispose]());
  // A start waits half a second for stores. On a busy machine they may take longer, and interrupted operations wait for them.
  const isOpening = (): boolean => server.core.stores.list().some(({ problem }) => problem?.reason === 'store-opening');
  await expect.poll(isOpening, { timeout: 30_000 }).toBe(false);
  return server;
}

async function create(server: TestServer, access: 'block' | 'filesystem' = 'block', name = 'a'): Promise<Volume> {
  if (!server.core.stores.list().some(({ config }) => config.name === 'images'))
    await server.core.stores.add('images', `local://${pathOf('images')}?layout=image&onDelete=delete`, aCall());
  return await server.core.volumes.create(
    { store: 'images', name, bytes: 64n << 20n, access, labels: {} },
    aCall({ requestId: `make-${name}` }),
  );
}

const mount = (server: TestServer, { id }: Volume, target = pathOf('m'), readOnly = false): Promise<LiveMount> =>
  server.core.mounts.publish(id, target, { readOnly, user: undefined, claimTarget: true }, aCall());
const unmount = (server: TestServer, { id }: Volume, target = pathOf('m')): Promise<void> =>
  server.core.mounts.unpublish(target, id, aCall());
const listed = async ({ core }: TestServer): Promise<readonly [string, boolean][]> =>
  (await core.mounts.list(aCall())).map(({ target, mounted }) => [target, mounted]);

/**
 * Binds the device elsewhere, like a kubelet, until the returned object is disposed of. Stowage must not remove that
 * mount.
 */
function bindDeviceElsewhere(): Disposable {
  const [device = ''] = ground.loops();
  writeFileSync(pathOf('elsewhere'), '');
  execFileSync('mount', ['--bind', device, pathOf('elsewhere')]);
  return { [Symbol.dispose]: () => void execFileSync('umount', [pathOf('elsewhere')]) };
}

/** Records an intent without an end, as a server leaves it after kill -9. */
function leaveIntent(kind: string, params: Record<string, unknown>): Operation['id'] {
  const id = newOperationId();
  const records = openRecords(pathOf('state/state.db'));
  const operation = { id, kind, store: 'images', subject: 'images/a', params };
  records.operations.begin({ ...operation, state: 'running', startedAt: 1, endedAt: undefined, error: undefined });
  records.close();
  return id;
}

const stillBound = { code: 'in-use', message: expect.stringContaining(`it is still mounted at `) };

describe.skipIf(lacks('root', 'mount', 'loop'))('an unmount that could not detach the device of the volume', () => {
  test('is finished when it is repeated, and refused until then', async () => {
    const server = await start();
    const volume = await create(server);
    await mount(server, volume);
    {
      using _elsewhere = bindDeviceElsewhere();
      for (let n = 0; n < 2; n++) await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      expect(await listed(server)).toEqual([[pathOf('m'), false]]);
    }
    for (let n = 0; n < 2; n++) await unmount(server, volume);
    expect([ground.loops(), ground.mounts(), existsSync(pathOf('m')), await listed(server)]).toEqual([
      [],
      [],
      false,
      [],
    ]);
  });

  test('is refused for as long as the device is open', async () => {
    const server = await start();
    const volume = await create(server);
    await mount(server, volume);
    const openDevice = openSync(ground.loops()[0] ?? '', 'r');
    try {
      for (let n = 0; n < 2; n++)
        await expect(unmount(server, volume)).rejects.toMatchObject({ code: 'in-use', reason: 'mount-busy' });
    } finally {
      closeSync(openDevice);
    }
    for (let n = 0; n < 2; n++) await unmount(server, volume);
    expect([ground.loops(), await listed(server)]).toEqual([[], []]);
  });

  test('is finished when it is repeated, even if a mount at the same target failed in between', async () => {
    const server = await start();
    const volume = await create(server);
    await mount(server, volume);
    {
      using _elsewhere = bindDeviceElsewhere();
      await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      renameSync(image(), pathOf('images/aside'));
      await expect(mount(server, volume)).rejects.toMatchObject({ reason: 'volume-data-unusable' });
      renameSync(pathOf('images/aside'), image());
      await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
    }
    await unmount(server, volume);
    expect([ground.loops(), await listed(server)]).toEqual([[], []]);
  });

  test('does not prevent mounting the volume again at the same target', async () => {
    const server = await start();
    const volume = await create(server);
    await mount(server, volume);
    const loopsBefore = ground.loops();
    {
      using _elsewhere = bindDeviceElsewhere();
      await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      expect(await mount(server, volume)).toMatchObject({ mounted: true });
      expect(ground.loops()).toEqual(loopsBefore);
    }
    await unmount(server, volume);
    expect([ground.loops(), await listed(server)]).toEqual([[], []]);
  });

  test('prevents mounting another volume at the same target, with an action in the error', async () => {
    const server = await start();
    const volume = await create(server);
    const otherVolume = await create(server, 'block', 'b');
    await mount(server, volume);
    {
      using _elsewhere = bindDeviceElsewhere();
      await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      await expect(mount(server, otherVolume)).rejects.toMatchObject({
        reason: 'mount-unfinished',
        action: `Repeat the unmount, which reports who still uses the volume: stowage unmount ${pathOf('m')}`,
      });
      expect(await listed(server)).toEqual([[pathOf('m'), false]]);
    }
    await unmount(server, volume);
    await mount(server, otherVolume);
    await unmount(server, otherVolume);
    expect([ground.loops(), await listed(server)]).toEqual([[], []]);
  });

  test('succeeds with force; the device stays attached until the next start', async () => {
    const server = await start();
    const volume = await create(server);
    await mount(server, volume);
    {
      using _elsewhere = bindDeviceElsewhere();
      for (let n = 0; n < 2; n++) await server.core.mounts.unpublish(pathOf('m'), volume.id, aCall(), { force: true });
      expect([await listed(server), ground.loops().length]).toEqual([[], 1]);
    }
    await server.stop();
    await start();
    expect(ground.loops()).toEqual([]);
  });

  test('is finished by a rename of the volume, so that its record does not match a new volume with the old name', async () => {
    const server = await start();
    const volume = await create(server);
    await mount(server, volume);
    const openDevice = openSync(ground.loops()[0] ?? '', 'r');
    await expect(unmount(server, volume)).rejects.toMatchObject({ code: 'in-use' });
    closeSync(openDevice);
    await server.core.volumes.rename(volume.id, 'c', undefined, aCall());
    const newVolume = await create(server);
    await mount(server, newVolume, pathOf('n'));
    await unmount(server, volume);
    expect(await listed(server)).toEqual([[pathOf('n'), true]]);
    await unmount(server, newVolume, pathOf('n'));
    expect([ground.loops(), await listed(server)]).toEqual([[], []]);
  });

  test('is finished after a restart', async () => {
    let server = await start();
    const volume = await create(server);
    await mount(server, volume);
    {
      using _elsewhere = bindDeviceElsewhere();
      await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      for (let n = 0; n < 2; n++) {
        await server.stop();
        server = await start();
        expect(await listed(server)).toEqual([[pathOf('m'), false]]);
        await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      }
    }
    await unmount(server, volume);
    expect([ground.loops(), await listed(server)]).toEqual([[], []]);
  });

  test('is finished by a restart once nobody uses the device', async () => {
    let server = await start();
    const volume = await create(server);
    await mount(server, volume);
    {
      using _elsewhere = bindDeviceElsewhere();
      await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      await server.stop();
    }
    expect(ground.loops()).toHaveLength(1);
    server = await start();
    expect([ground.loops(), await listed(server), existsSync(pathOf('m'))]).toEqual([[], [], false]);
    await unmount(server, volume);
  });

  test.each(['the target', 'the target and the stage'])(
    'is finished when it is repeated after a crash that followed the unmount of %s',
    async (what) => {
      let server = await start();
      const volume = await create(server);
      const params = { mount: await mount(server, volume) };
      const elsewhere = bindDeviceElsewhere();
      await server.stop();
      // The mount at the other path stays.
      const stage = join(pathOf('state'), 'mounts', volume.id);
      for (const mountPath of what === 'the target' ? [pathOf('m')] : [pathOf('m'), stage])
        if (ground.mounts().includes(mountPath)) execFileSync('umount', [mountPath]);
      const intent = leaveIntent('volume.unmount', params);
      server = await start();
      expect(server.core.operations.get(intent)?.operation).toMatchObject({
        state: 'failed',
        error: { code: 'in-use' },
      });
      await expect(unmount(server, volume)).rejects.toMatchObject(stillBound);
      elsewhere[Symbol.dispose]();
      await unmount(server, volume);
      expect([ground.loops(), await listed(server)]).toEqual([[], []]);
    },
  );
});

describe.skipIf(lacks('root', 'mount', 'loop', 'ext4'))('a volume whose image is attached without a mount', () => {
  test('is not deleted', async () => {
    const server = await start();
    const volume = await create(server);
    const device = attachImage(image());
    await expect(server.core.deletions.delete(volume.id, undefined, aCall())).rejects.toMatchObject({
      code: 'in-use',
      message: expect.stringContaining(`it is used by path ${device} on`),
    });
    expect(ground.loops(image())).toEqual([device]);
  });

  test.each(['block', 'filesystem'] as const)(
    'is detached by a deletion that a crash interrupted (%s)',
    async (access) => {
      let server = await start();
      const volume = await create(server, access);
      await server.stop();
      attachImage(image());
      const intent = leaveIntent('volume.delete', { id: volume.id, name: 'a', deletedAt: 7 });
      server = await start();
      expect(server.core.operations.get(intent)?.operation.state).toBe('done');
      expect([ground.loops(), existsSync(image())]).toEqual([[], false]);
    },
  );

  test('is detached by a deletion that has to wait for its store', async () => {
    let server = await start();
    const volume = await create(server);
    await server.stop();
    const intent = leaveIntent('volume.delete', { id: volume.id, name: 'a', deletedAt: 7 });
    renameSync(pathOf('images'), pathOf('aside'));
    server = await start();
    renameSync(pathOf('aside'), pathOf('images'));
    attachImage(image());
    await runMaintenance(server.core);
    expect(server.core.operations.get(intent)?.operation.state).toBe('done');
    expect([ground.loops(), existsSync(image())]).toEqual([[], false]);
  });

  test.each(['block', 'filesystem'] as const)(
    'is kept by a deletion that a crash interrupted, while the device is mounted elsewhere (%s)',
    async (access) => {
      let server = await start();
      const volume = await create(server, access);
      await server.stop();
      const device = attachImage(image());
      if (access === 'block') {
        writeFileSync(pathOf('elsewhere'), '');
        execFileSync('mount', ['--bind', device, pathOf('elsewhere')]);
      } else {
        mkdirSync(pathOf('elsewhere'));
        execFileSync('mount', [device, pathOf('elsewhere')]);
      }
      const intent = leaveIntent('volume.delete', { id: volume.id, name: 'a', deletedAt: 7 });
      server = await start();
      expect(server.core.operations.get(intent)?.operation).toMatchObject({
        state: 'failed',
        error: { code: 'in-use' },
      });
      expect([ground.loops(image()), existsSync(image())]).toEqual([[device], true]);
    },
  );

  test('can be deleted if its data is gone', async () => {
    let server = await start();
    const volume = await create(server);
    rmSync(image());
    await server.stop();
    const intent = leaveIntent('volume.delete', { id: volume.id, name: 'a', deletedAt: 7 });
    server = await start();
    expect(server.core.operations.get(intent)?.operation.state).toBe('done');
  });
});
