import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Volume } from '#core/model.ts';
import { aCall } from '#testing/core-calls.ts';
import { emptyResult, servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

describe('a plugin', () => {
  test('announces its protocol, and the scope that belongs to its name', async () => {
    const [shared, own] = [await it.start('stowage'), await it.start('stowage-local')];
    expect(await shared('Plugin.Activate')).toEqual({ Implements: ['VolumeDriver'], Err: '' });
    expect(await shared('VolumeDriver.Capabilities', {})).toMatchObject({ Capabilities: { Scope: 'global' } });
    expect(await own('VolumeDriver.Capabilities', {})).toMatchObject({ Capabilities: { Scope: 'local' } });
  });

  test('creates a volume on the named store and shows it', async () => {
    const call = await it.start();
    const Opts = { store: 'local', size: '1.5G', 'label.team': 'blue' };
    expect(await call('VolumeDriver.Create', { Name: 'photos', Opts, Unknown: [1] })).toEqual(emptyResult);
    const get = async () =>
      (await call('VolumeDriver.Get', { Name: 'photos' })) as { Volume: { readonly [key: string]: unknown } };
    // The usage is shown once it is known.
    await expect.poll(async () => (await get()).Volume['Status']).toHaveProperty('used');
    const { Volume } = await get();
    const volume = it.server.core.records.volumes.allByName('photos' as Volume['name'])[0];
    expect(Volume).toEqual({
      Name: 'photos',
      Mountpoint: '',
      CreatedAt: new Date(volume?.createdAt ?? 0).toISOString(),
      Status: {
        store: 'local',
        volume: 'photos',
        id: volume?.id,
        size: '1.5GiB',
        used: expect.any(String),
        enforce: false,
        health: 'ok',
        client: 'bind',
        network: 'none',
        access: 'filesystem',
        labels: { team: 'blue' },
      },
    });
    expect(await call('VolumeDriver.List', {})).toEqual({
      Volumes: [{ Name: 'photos', Mountpoint: '', CreatedAt: Volume['CreatedAt'] }],
      Err: '',
    });
    expect(await call('VolumeDriver.Path', { Name: 'photos' })).toEqual({ Mountpoint: '', Err: '' });
  });

  test('creates a volume on the only store of its scope if none is named; missing options are no options', async () => {
    const call = await it.start('stowage');
    expect(await call('VolumeDriver.Create', { Name: 'a'.repeat(64), Opts: null })).toEqual(emptyResult);
    expect(await call('VolumeDriver.Create', { Name: 'silver..b' })).toEqual(emptyResult);
    expect(await call('VolumeDriver.Get', { Name: 'b' })).toMatchObject({
      Volume: { Status: { store: 'silver', client: 'built-in data path', network: 'host' } },
    });
    expect(await (await it.start())('VolumeDriver.List', {})).toEqual({ Volumes: [], Err: '' });
  });

  test('removes a volume, and succeeds if there is none', async () => {
    const call = await it.start();
    await call('VolumeDriver.Create', { Name: 'a' });
    expect(await call('VolumeDriver.Remove', { Name: 'a' })).toEqual(emptyResult);
    expect(it.server.core.pluginNames.recordedId('stowage-local', 'a')).toBeUndefined();
    expect(await call('VolumeDriver.Remove', { Name: 'a' })).toEqual(emptyResult);
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toEqual({
      status: 404,
      Err: "there is no volume 'a'. List the volumes: stowage volume list",
    });
    // A new volume with the same name is another volume.
    expect(await call('VolumeDriver.Create', { Name: 'a' })).toEqual(emptyResult);
  });

  test('names the right driver for a volume of the other scope', async () => {
    await it.make('local', 'mine');
    const call = await it.start('stowage');
    for (const [method, message] of [
      ['VolumeDriver.Get', { Name: 'mine' }],
      ['VolumeDriver.Mount', { Name: 'mine', ID: '1' }],
      ['VolumeDriver.Create', { Name: 'new', Opts: { store: 'local' } }],
    ] as const)
      expect(await call(method, message)).toMatchObject({
        status: method === 'VolumeDriver.Create' ? 400 : 404,
        Err: expect.stringContaining('-d stowage-local'),
      });
    // Names are unique within their scope only.
    expect(await call('VolumeDriver.Create', { Name: 'mine' })).toEqual(emptyResult);
  });
});

test('Unmount of a name that was never mounted succeeds, and a block volume is not mounted', async () => {
  const folder = mkdtempSync(join(it.server.folder, 'images-'));
  await it.server.core.stores.add('images', `local://${folder}?layout=image`, aCall());
  await it.make('images', 'raw', { access: 'block', bytes: 1n << 24n });
  const call = await it.start();
  expect(await call('VolumeDriver.Unmount', { Name: 'never', ID: '1' })).toEqual(emptyResult);
  expect(await call('VolumeDriver.Mount', { Name: 'raw', ID: '1' })).toMatchObject({
    status: 422,
    Err: expect.stringContaining('is a raw block device'),
  });
  expect(await call('VolumeDriver.Get', { Name: 'raw' })).toMatchObject({
    Volume: { Status: { access: 'block', client: 'loop', enforce: true } },
  });
});
