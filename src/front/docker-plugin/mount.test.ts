import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeEngine, type FakeEngine } from '#testing/fakes/container-engine.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { createApi, startServer, type TestServer } from '#testing/server.ts';
import { createPluginServer } from './server.ts';

const plugin = 'stowage-local';

/** Podman's timeout: it gives up after a few seconds, and retries. */
const podmanHold = '2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2';

describe.skipIf(lacks('mount'))('a volume that engines mount', () => {
  let server: TestServer;
  let docker: FakeEngine;
  let kind: GatedKind;
  let at: string;
  let connections: () => Promise<number>;
  let call: (method: string, message: object) => Promise<{ status: number; Err: string; Mountpoint?: string }>;

  beforeEach(async () => {
    docker = createFakeEngine();
    kind = gated(createLocalStoreKind());
    server = await startServer({ listen: 'none', engines: [docker], kinds: [kind] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const served = createPluginServer({
      core: server.core,
      plugin,
      storeOptions: new Set<string>(),
      clock: systemClock(),
      log: silentLog(),
    });
    const folder = await mkdtemp(join(tmpdir(), 'stowage-mounting-'));
    onTestFinished(() => rm(folder, { recursive: true }));
    at = join(folder, 's');
    await new Promise<void>((resolve) => served.server.listen(at, resolve));
    connections = () => new Promise((resolve) => served.server.getConnections((_error, count) => resolve(count)));
    onTestFinished(() => served.close(0));
    const api = createApi({ socketPath: at });
    call = async (method, message) => {
      const { status, text } = await api.call('POST', `/VolumeDriver.${method}`, { raw: JSON.stringify(message) });
      return { status, ...JSON.parse(text) };
    };
    expect(await call('Create', { Name: 'photos' })).toEqual({ status: 200, Err: '' });
    onTestFinished(async () => {
      docker.remove('web');
      await server.core.engineMounts.reconcile(aCall());
    });
    docker.run('web', { photos: plugin });
  });

  /** Docker reports the container's end after it has released the volume. */
  const ends = (): void => docker.run('web', { photos: plugin }, false);

  test('has the same mountpoint for all containers, and is unmounted with the last one', async () => {
    const { Mountpoint: place = '', status } = await call('Mount', { Name: 'photos', ID: '1' });
    expect(status).toBe(200);
    expect(await call('Mount', { Name: 'photos', ID: '2' })).toMatchObject({ status: 200, Mountpoint: place });
    await writeFile(join(place, 'file'), 'text');
    expect(await readFile(join(server.storeFolder, 'photos', 'file'), 'utf8')).toBe('text');
    expect(await call('Path', { Name: 'photos' })).toMatchObject({ Mountpoint: place });
    expect(await call('Get', { Name: 'photos' })).toMatchObject({ Volume: { Mountpoint: place } });
    expect(await call('List', {})).toMatchObject({ Volumes: [{ Name: 'photos', Mountpoint: place }] });
    expect(await call('Remove', { Name: 'photos' })).toMatchObject({
      status: 409,
      Err: expect.stringMatching(/^volume 'local\/photos' .*container web.*\. .+/),
    });
    for (const ID of ['1', 'never', '2']) {
      expect(existsSync(place)).toBe(true);
      expect(await call('Unmount', { Name: 'photos', ID })).toEqual({ status: 200, Err: '' });
    }
    ends();
    await vi.waitFor(() => expect(existsSync(place)).toBe(false));
    expect(await call('Path', { Name: 'photos' })).toMatchObject({ Mountpoint: '' });
    docker.remove('web');
    expect(await call('Remove', { Name: 'photos' })).toMatchObject({ status: 200 });
  });

  test('is mounted once for many concurrent containers, and not at all after the last one', async () => {
    const ids = Array.from({ length: 40 }, (_, index) => String(index));
    const mounted = await Promise.all(ids.map((ID) => call('Mount', { Name: 'photos', ID })));
    expect(new Set(mounted.map(({ Mountpoint }) => Mountpoint)).size).toBe(1);
    expect(mounted.every(({ status }) => status === 200)).toBe(true);
    expect(await server.core.mounts.list(aCall())).toHaveLength(1);
    // Some unmount while others mount.
    const mixed = ids.flatMap((ID) => [
      call('Unmount', { Name: 'photos', ID }),
      call('Mount', { Name: 'photos', ID: `later-${ID}` }),
    ]);
    expect((await Promise.all(mixed)).every(({ status }) => status === 200)).toBe(true);
    expect(await server.core.mounts.list(aCall())).toHaveLength(1);
    await Promise.all(ids.map((ID) => call('Unmount', { Name: 'photos', ID: `later-${ID}` })));
    ends();
    await vi.waitFor(async () => expect(await server.core.mounts.list(aCall())).toEqual([]));
  });

  test('can be unmounted while its store does not answer', async () => {
    const { Mountpoint: place = '' } = await call('Mount', { Name: 'photos', ID: '1' });
    const gates = (['get', 'source', 'names', 'check'] as const).map((verb) => kind.close(verb, { deaf: true }));
    onTestFinished(() => gates.forEach((gate) => void gate.open()));
    expect(await call('Unmount', { Name: 'photos', ID: '1' })).toEqual({ status: 200, Err: '' });
    ends();
    await vi.waitFor(() => expect(existsSync(place)).toBe(false));
  });

  test('continues to be mounted when the engine hangs up, and is ready when the engine retries', async () => {
    const gate = kind.close('source');
    const body = JSON.stringify({ Name: 'photos', ID: podmanHold });
    const others = await connections();
    const socket = connect(at);
    socket.write(`POST /VolumeDriver.Mount HTTP/1.1\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
    await gate.reached;
    socket.destroy();
    await vi.waitFor(async () => expect(await connections()).toBe(others));
    gate.open();
    const id = server.core.pluginNames.recordedId(plugin, 'photos');
    await vi.waitFor(() => expect(id && server.core.engineMounts.pathOf(id)).toBeDefined());
    expect(await call('Mount', { Name: 'photos', ID: podmanHold })).toMatchObject({ status: 200 });
    // Both calls shared one mount.
    await call('Unmount', { Name: 'photos', ID: podmanHold });
    ends();
    await vi.waitFor(() => expect(id && server.core.engineMounts.pathOf(id)).toBeUndefined());
  });
});
