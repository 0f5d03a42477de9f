import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Volume } from '#core/model.ts';
import { aCall } from '#testing/core-calls.ts';
import { emptyResult, servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

describe('Create for a volume that exists', () => {
  test('succeeds if the options match, regardless of who created the volume and what has changed since', async () => {
    const call = await it.start();
    const Opts = { size: '1M', 'label.a': 'b' };
    await call('VolumeDriver.Create', { Name: 'twice', Opts });
    expect(await call('VolumeDriver.Create', { Name: 'twice', Opts })).toEqual(emptyResult);
    await it.server.core.volumes.label('twice', { c: 'd' }, undefined, aCall());
    expect(await call('VolumeDriver.Create', { Name: 'twice', Opts })).toEqual(emptyResult);
    await it.make('local', 'other', { bytes: 1n << 20n });
    expect(await call('VolumeDriver.Create', { Name: 'other', Opts: { size: '1M', store: 'local' } })).toEqual(
      emptyResult,
    );
    expect(it.server.core.records.volumes.totals('local' as Volume['store']).volumes).toBe(2);
  });

  test('is refused if the options differ, and names the differences', async () => {
    const call = await it.start();
    const { id } = await it.make('local', 'a', { labels: { x: 'y' } });
    const Opts = { size: '2M', 'label.x': 'z', 'label.new': '1' };
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts })).toEqual({
      status: 409,
      Err: "volume 'a' already exists with other options: it has no size, its label 'x' is 'y', its label 'new' is not set. Choose another name, or omit these options to use the existing volume.",
    });
    await it.server.core.volumes.expand(id, 1n << 30n, undefined, aCall());
    // The plugin knows the name by now.
    await call('VolumeDriver.Get', { Name: 'a' });
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts: { size: '2M' } })).toMatchObject({
      Err: expect.stringContaining('its size is 1GiB'),
    });
  });

  test('keeps the name for the volume that exists in another store', async () => {
    const folder = mkdtempSync(join(it.server.folder, 'gold-'));
    await it.server.core.stores.add('gold', `local://${folder}`, aCall());
    await it.make('gold', 'a');
    const call = await it.start();
    await call('VolumeDriver.Get', { Name: 'a' });
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts: { store: 'local' } })).toMatchObject({
      status: 409,
      Err: expect.stringContaining("it is on store 'gold'"),
    });
    // A new name refers to the volume that was created for it, although the default store has one of that name.
    await it.make('local', 'b');
    expect(await call('VolumeDriver.Create', { Name: 'b', Opts: { store: 'gold' } })).toEqual(emptyResult);
    expect(await call('VolumeDriver.Get', { Name: 'b' })).toMatchObject({ Volume: { Status: { store: 'gold' } } });
  });
});
