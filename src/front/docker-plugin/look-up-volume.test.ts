import { mkdtemp, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { gated } from '#testing/fakes/gated-store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { refusing } from '#testing/fakes/refusing-store.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { emptyResult, servedPlugins } from '#testing/plugin.ts';
import { startServer } from '#testing/server.ts';

const it = servedPlugins();

describe('a name that several stores have', () => {
  test('exists for Docker, which would otherwise create a volume of its own, but cannot be mounted or removed', async () => {
    const call = await it.start('stowage-local');
    await it.server.core.stores.add('gold', `local://${await mkdtemp(join(it.server.folder, 'gold-'))}`, aCall());
    await it.make('silver', 'a');
    await it.make('gold', 'a');
    const why =
      "'a' is in several stores: gold/a, silver/a. Specify one as store/name. For Docker and Podman, write store..name, also to create another volume of that name.";
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({
      Volume: { Name: 'a', Status: { health: why } },
    });
    expect(await call('VolumeDriver.Mount', { Name: 'a', ID: '1' })).toEqual({ status: 409, Err: why });
    expect(await call('VolumeDriver.Remove', { Name: 'a' })).toEqual({ status: 409, Err: why });
  });

  test('or that one of several stores has, needs no store option in Create, although there is no default store', async () => {
    const call = await it.start('stowage');
    await it.server.core.stores.add('gold', `nfs://server${await mkdtemp(join(it.parent, 'gold-'))}`, aCall());
    await it.make('silver', 'a');
    expect(await call('VolumeDriver.Create', { Name: 'b' })).toMatchObject({
      Err: expect.stringContaining('no store was named'),
    });
    expect(await call('VolumeDriver.Create', { Name: 'a' })).toEqual(emptyResult);
    await it.make('silver', 'c');
    await it.make('gold', 'c');
    expect(await call('VolumeDriver.Create', { Name: 'c' })).toMatchObject({
      Err: expect.stringContaining('is in several stores: gold/c, silver/c'),
    });
  });

  test('can be removed from this scope once it is gone here, whatever the other scope has', async () => {
    const call = await it.start('stowage-local');
    await it.make('silver', 'a');
    expect(await call('VolumeDriver.Remove', { Name: 'a' })).toEqual(emptyResult);
    expect(await it.server.core.volumes.inspect('silver..a', aCall())).toMatchObject({ condition: 'ok' });
  });
});

describe('a store that does not answer', () => {
  test('fails Create within seconds, with a message for the user', async () => {
    const call = await it.start('stowage');
    const gate = it.nfs.close('ping', { deaf: true });
    onTestFinished(() => gate.open());
    expect(await call('VolumeDriver.Create', { Name: 'a' })).toEqual({
      status: 503,
      Err: "the server of store 'silver' does not answer: a network or server failure, not missing permissions. Try again later. The administrator can find the cause with: stowage store check silver",
    });
  });

  test('does not make its volumes look missing: Docker would suggest to remove them by force', async () => {
    const call = await it.start('stowage');
    await call('VolumeDriver.Create', { Name: 'a' });
    const gates = [it.nfs.close('ping', { deaf: true }), it.nfs.close('get', { deaf: true })];
    onTestFinished(() => gates.forEach((gate) => void gate.open()));
    // These calls do not ask the store: a container must be able to stop.
    expect(await call('VolumeDriver.Path', { Name: 'a' })).toMatchObject({ Mountpoint: '' });
    expect(await call('VolumeDriver.Unmount', { Name: 'a', ID: '1' })).toEqual(emptyResult);
    expect(gates.map((gate) => gate.waiting())).toEqual([0, 0]);
    const refused = await call('VolumeDriver.Mount', { Name: 'a', ID: '1' });
    expect(refused).toMatchObject({ status: 503, Err: expect.stringContaining("store 'silver' does not answer") });
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({
      Volume: { Name: 'a', Status: { health: "the server of store 'silver' does not answer" } },
    });
    expect(await call('VolumeDriver.List', {})).toMatchObject({ Volumes: [{ Name: 'a' }] });
  });

  test('is reported as a permission problem after its server began to deny this host', async () => {
    const own = await startOwnServer({ path: '/export' });
    const kind = gated(createNfsStoreKind());
    const other = await startServer({ listen: 'none', kinds: [createLocalStoreKind(), kind] });
    onTestFinished(() => other[Symbol.asyncDispose]());
    const { port } = own.server;
    const uri = `nfs://127.0.0.1/export?port=${port}&mountport=${port}&timeout=1s`;
    await other.core.stores.add('silver', uri, aCall());
    const call = await it.start('stowage', { core: other.core });
    expect(await call('VolumeDriver.Create', { Name: 'a' })).toEqual(emptyResult);
    const why =
      'ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem. Ask the administrator to grant Stowage access';
    // The server answers the ping, but denies access when the volume is created.
    const gate = kind.close('create');
    const created = call('VolumeDriver.Create', { Name: 'b' });
    await gate.reached;
    await own.restart({ networks: ['192.0.2.0/24'] });
    gate.open();
    expect(await created).toEqual({ status: 503, Err: expect.stringContaining(`the server of the store ${why}`) });
    for (const [method, message] of [
      ['Create', { Name: 'c' }],
      ['Mount', { Name: 'a', ID: '1' }],
      ['Remove', { Name: 'a' }],
    ] as const)
      expect(await call(`VolumeDriver.${method}`, message)).toEqual({ status: 503, Err: expect.stringContaining(why) });
  });

  test('that denies every request shows in the health of its volumes', async () => {
    const kind = refusing(createNfsStoreKind(systemClock(), connectToDisk(it.parent)));
    const other = await startServer({ listen: 'none', kinds: [createLocalStoreKind(), kind] });
    onTestFinished(() => other[Symbol.asyncDispose]());
    await other.core.stores.add('silver', `nfs://server${await mkdtemp(join(it.parent, 'denied-'))}`, aCall());
    const call = await it.start('stowage', { core: other.core });
    expect(await call('VolumeDriver.Create', { Name: 'a' })).toEqual(emptyResult);
    const why = { code: 'denied', reason: 'nfs-credential-denied', action: 'Look.' } as const;
    for (const verb of ['changedByOthers.revisions', 'names'] as const)
      kind.fail(verb, new StowageError('it says no', why));
    expect(await call('VolumeDriver.List', {})).toMatchObject({ Volumes: [{ Name: 'a' }] });
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({
      Volume: {
        Status: { health: "access to store 'silver' is denied: this is a permission problem, not a network problem" },
      },
    });
  });

  test('and was never reached is reported without its address, and with a command for the administrator', async () => {
    const config = join(it.server.folder, 'two.yaml');
    await writeFile(config, 'stores: { gold: "nfs://127.0.0.1/x?port=1&mountport=1&timeout=500ms&retries=0" }');
    await using other = await startServer({ listen: 'none', config });
    const call = await it.start('stowage', { core: other.core });
    const { status, Err } = await call('VolumeDriver.Create', { Name: 'a' });
    expect(status).toBe(503);
    expect(Err).toMatch(
      /^the server of the store does not answer: a network or server failure.*ask the administrator, who finds out why/,
    );
    expect(Err).not.toContain('127.0.0.1');
    // The log must have the address, at the default level.
    expect(it.log.lines.filter((line) => line.startsWith('warn') && line.includes('127.0.0.1'))).toHaveLength(1);
  });
});
