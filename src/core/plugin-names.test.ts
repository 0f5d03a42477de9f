import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeEngine, type FakeEngine } from '#testing/fakes/container-engine.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { PluginName } from './containers.ts';
import type { StowageError } from './errors.ts';
import type { Volume } from './model.ts';

let server: TestCore;
let docker: FakeEngine;

beforeEach(async () => {
  const parent = mkdtempSync(join(tmpdir(), 'stowage-plugin-names-'));
  onTestFinished(() => rmSync(parent, { recursive: true, force: true }));
  const kinds = [createLocalStoreKind(), createNfsStoreKind(systemClock(), connectToDisk(parent))];
  docker = createFakeEngine();
  server = await startCore({ kinds, engines: [docker] });
  onTestFinished(() => server[Symbol.asyncDispose]());
  for (const name of ['silver', 'gold']) {
    const folder = mkdtempSync(join(parent, `${name}-`));
    await server.core.stores.add(name, `local://${folder}`, aCall());
  }
});

const make = (store: string, name: string): Promise<Volume> =>
  server.core.volumes.create({ store, name, bytes: undefined, access: undefined, labels: {} }, aCall());
const resolve = (name: string, plugin: PluginName = 'stowage-local'): Promise<Volume> =>
  server.core.pluginNames.resolve(plugin, name, aCall());
const listed = async (): Promise<readonly string[]> =>
  (await server.core.pluginNames.list('stowage-local', aCall())).map(({ name }) => name).toSorted();

describe('the names of volumes in engines', () => {
  test('are looked up in the default store first, then in the others, or in the store that the name contains', async () => {
    const [ours, theirs] = [await make('local', 'a'), await make('silver', 'a')];
    const goldVolume = await make('gold', 'b');
    expect(await resolve('a')).toEqual(ours);
    expect(await resolve('silver..a')).toEqual(theirs);
    expect(await resolve('b')).toEqual(goldVolume);
    expect(await listed()).toEqual(['a', 'b', 'silver..a']);
  });

  test('are rejected with the candidates if several other stores have them', async () => {
    await make('silver', 'a');
    await make('gold', 'a');
    await expect(resolve('a')).rejects.toMatchObject({
      code: 'conflict',
      message: "'a' is in several stores: gold/a, silver/a",
      action: expect.stringContaining('store..name'),
    });
    expect(await listed()).toEqual(['gold..a', 'silver..a']);
  });

  test('keep their volume when a volume with the same name appears in a store with precedence', async () => {
    const first = await make('silver', 'a');
    expect(await resolve('a')).toEqual(first);
    const newerVolume = await make('local', 'a');
    expect(await resolve('a')).toEqual(first);
    expect(await resolve('local..a')).toEqual(newerVolume);
    expect(await listed()).toEqual(['a', 'local..a']);
    await server.core.deletions.delete(first.id, undefined, aCall());
    expect(await resolve('a')).toEqual(newerVolume);
  });

  test('are forgotten when the volume is gone and no container references it', async () => {
    const names = ['a', 'local..a', 'b', 'c'];
    const recordedNames = () =>
      names.filter((name) => server.core.pluginNames.recordedId('stowage-local', name) !== undefined);
    const [first, second, third] = [await make('local', 'a'), await make('local', 'b'), await make('gold', 'c')];
    for (const name of names) await resolve(name);
    await server.core.deletions.delete(first.id, undefined, aCall());
    server.core.pluginNames.forget(first.id);
    expect(recordedNames()).toEqual(['b', 'c']);
    docker.run('web', { c: 'stowage-local' }, false);
    await server.core.references.refreshAll(aCall());
    for (const { id } of [second, third]) server.core.records.volumes.remove(id);
    expect(await listed()).toEqual([]);
    expect(recordedNames()).toEqual(['c']);
    docker.remove('web');
    await server.core.references.refreshAll(aCall());
    await listed();
    expect(recordedNames()).toEqual([]);
  });

  test('stay when the volume is renamed', async () => {
    const { id } = await make('local', 'a');
    await resolve('a');
    const renamed = await server.core.volumes.rename(id, 'b', undefined, aCall());
    expect(await resolve('a')).toEqual(renamed);
    expect(await listed()).toEqual(['a']);
  });

  test('in the scope of the other plugin are rejected with the driver to use', async () => {
    await make('local', 'a');
    await expect(resolve('a', 'stowage')).rejects.toMatchObject({
      reason: 'plugin-other-scope',
      action: expect.stringContaining('-d stowage-local'),
    });
    await expect(resolve('local..a', 'stowage')).rejects.toMatchObject({ reason: 'plugin-other-scope' });
    await expect(resolve('none', 'stowage')).rejects.toMatchObject({ code: 'not-found' });
    await expect(resolve('../a')).rejects.toMatchObject({ code: 'not-found' });
    await expect(resolve('a/b')).rejects.toMatchObject({ reason: 'name-invalid' });
  });
});

describe('names in both scopes, for which Docker asks both plugins in any order', () => {
  const both: readonly PluginName[] = ['stowage', 'stowage-local'];
  const answers = async (name: string): Promise<readonly (Volume | string)[]> =>
    await Promise.all(both.map((plugin) => resolve(name, plugin).catch((error: StowageError) => error.reason)));
  const listedBy = async (plugin: PluginName): Promise<readonly string[]> =>
    (await server.core.pluginNames.list(plugin, aCall())).map(({ name }) => name).toSorted();

  beforeEach(async () => {
    await server.core.stores.add('far', 'nfs://server/far', aCall());
  });

  test('refer to the volume in the default store', async () => {
    const [ours] = [await make('local', 'a'), await make('far', 'a')];
    expect(await answers('a')).toEqual(['plugin-other-scope', ours]);
    expect(await Promise.all(both.map(listedBy))).toEqual([['far..a'], ['a']]);
  });

  test('are rejected by both plugins, with the candidates, if several other stores have them', async () => {
    await make('silver', 'a');
    await make('far', 'a');
    expect(await answers('a')).toEqual(['volume-ambiguous', 'volume-ambiguous']);
    expect(await Promise.all(both.map(listedBy))).toEqual([['far..a'], ['silver..a']]);
    expect(await resolve('far..a', 'stowage')).toMatchObject({ store: 'far' });
  });

  test('keep their recorded volume', async () => {
    const first = await make('far', 'a');
    expect(await answers('a')).toEqual([first, 'plugin-other-scope']);
    await make('local', 'a');
    expect(await answers('a')).toEqual([first, 'plugin-other-scope']);
    expect(await Promise.all(both.map(listedBy))).toEqual([['a'], ['local..a']]);
  });
});

describe('the store for a new volume', () => {
  const placeFor = (name: string, store?: string, plugin: PluginName = 'stowage-local') =>
    server.core.pluginNames.storeAndNameFor(plugin, name, store);

  test('is the requested store, the store in the name, or the default store', () => {
    expect(placeFor('a')).toEqual({ store: 'local', name: 'a' });
    expect(placeFor('a', 'silver')).toEqual({ store: 'silver', name: 'a' });
    expect(placeFor('gold..a')).toEqual({ store: 'gold', name: 'a' });
    expect(placeFor('gold..a', 'gold')).toEqual({ store: 'gold', name: 'a' });
    expect(() => placeFor('gold..a', 'silver')).toThrow('names another store');
    expect(() => placeFor('a', 'bronze')).toThrow(
      expect.objectContaining({
        code: 'not-found',
        reason: 'store-unknown',
        message: "there is no store 'bronze'",
        action: "Use a store of this driver: 'local', 'silver', 'gold'",
      }),
    );
  });

  test('must be in the scope of the plugin', () => {
    expect(() => placeFor('a', 'silver', 'stowage')).toThrow('not for plugin stowage');
    expect(() => placeFor('a', undefined, 'stowage')).toThrow('has no store');
  });
});
