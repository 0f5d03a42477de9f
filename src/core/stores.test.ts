import { mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, collectingLog, waitForOptions } from '#testing/core-calls.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { StoreConfig, Volume } from './model.ts';
import { newVolumeId } from './names.ts';
import { parseStoreConfig } from './store-uri.ts';

let server: TestCore;
let kind: GatedKind;

beforeEach(async () => {
  kind = gated(createLocalStoreKind());
  server = await startCore({ kinds: [kind] });
  onTestFinished(() => server[Symbol.asyncDispose]());
});

async function makeFolder(name: string): Promise<string> {
  const path = join(server.folder, name);
  await mkdir(path, { recursive: true });
  return path;
}
const add = async (name: string, query = ''): Promise<unknown> =>
  server.core.stores.add(name, `local://${await makeFolder(name)}${query}`, aCall());
const create = (store: string | undefined, name: string): Promise<Volume> =>
  server.core.volumes.create({ store, name, bytes: undefined, access: undefined, labels: {} }, aCall());
const names = (): string[] => server.core.stores.list().map((view) => view.config.name);
const inFile = (name: string, uri: string): StoreConfig =>
  parseStoreConfig(name, uri, 'file', new Map([['local', kind]]));
const resolve = (ref: string): Promise<Volume> => server.core.catalogue.resolve(ref, aCall());

describe('when stores are added and removed', () => {
  test('an added store exists after a restart, with its volumes', async () => {
    await add('keep');
    const { id } = await create('keep', 'a');
    await server.stop();
    await using next = await startCore({ after: server });
    expect(next.core.stores.view('keep')).toMatchObject({ problem: undefined, config: { origin: 'api' } });
    expect(await next.core.catalogue.resolve('keep..a', aCall())).toMatchObject({ id });
  });

  test('adding the same store again succeeds; another URI for the name is rejected', async () => {
    await add('keep');
    await add('keep');
    await expect(add('keep', '?onDelete=archive')).rejects.toMatchObject({
      code: 'exists',
      message: "there is a store 'keep' already",
      action: 'Choose another name, or remove it first: stowage store remove keep',
    });
  });

  test('a directory that does not exist is rejected, and nothing is recorded', async () => {
    const uri = `local://${server.folder}/nowhere`;
    await expect(server.core.stores.add('x', uri, aCall())).rejects.toMatchObject({
      code: 'invalid',
      reason: 'store-root-missing',
    });
    expect(names()).toEqual(['local']);
  });

  test('the directory of another store is rejected', async () => {
    await expect(server.core.stores.add('x', `local://${server.storeFolder}`, aCall())).rejects.toMatchObject({
      code: 'conflict',
      reason: 'store-locked',
    });
  });

  test('concurrent adds of one name and one directory give one store', async () => {
    const path = await makeFolder('keep');
    const adding = Array.from({ length: 10 }, (_, i) =>
      server.core.stores.add(i % 2 === 0 ? 'one' : 'two', `local://${path}`, aCall()),
    );
    const results = await Promise.allSettled(adding);
    expect(results.filter((result) => result.status === 'fulfilled')).toHaveLength(5);
    expect(names()).toEqual(['local', expect.stringMatching(/^(one|two)$/)]);
  });

  test('a removed store is forgotten, and its data stays', async () => {
    await add('keep');
    const { id } = await create('keep', 'a');
    await server.core.stores.remove('keep', aCall());
    expect(names()).toEqual(['local']);
    await expect(resolve(id)).rejects.toMatchObject({ code: 'not-found' });
    await add('keep');
    expect(await resolve('keep..a')).toMatchObject({ id });
  });

  test('a removal waits for calls that use the store', async () => {
    await add('keep');
    const gate = kind.close('create');
    const creation = create('keep', 'a');
    await gate.reached;
    const removal = server.core.stores.remove('keep', aCall());
    await vi.waitFor(() => expect(server.core.stores.view('keep').store).toBeUndefined(), waitForOptions);
    await expect(create('keep', 'b')).rejects.toMatchObject({
      code: 'unavailable',
      message: "store 'keep' cannot be used: store 'keep' is being closed",
    });
    gate.open();
    expect(await creation).toMatchObject({ name: 'a' });
    await removal;
    expect(names()).toEqual(['local']);
  });

  test('the built-in store and stores from the configuration file cannot be removed', async () => {
    await expect(server.core.stores.remove('local', aCall())).rejects.toMatchObject({
      code: 'denied',
      message: "store 'local' is built in",
    });
    await expect(server.core.stores.remove('nope', aCall())).rejects.toMatchObject({
      code: 'not-found',
      message: "there is no store 'nope'",
      action: 'List the stores: stowage store list. The administrator adds one with: stowage store add NAME URI',
    });
  });

  test.each([
    ['nfs://x/y', 'no store is known for nfs://'],
    ['local', "'local' is not a store URI"],
    ['local://u:p@host/x', 'a store URI must not contain a user or password'],
    ['local:///x?constructor=1', "store 'x' has the unknown option 'constructor'"],
    ['local:///x?__proto__=1', "store 'x' has the unknown option '__proto__'"],
    ['local:///x?maxVolumes=-1', "store 'x': '-1' is not a value for maxVolumes"],
    ['local:///x?maxBytes=0', "store 'x': '0' is not a value for maxBytes"],
    ['local:///x?retention=soon', "store 'x': 'soon' is not a value for retention"],
    ['local:///x?retention=999999999w', "store 'x': '999999999w' is not a value for retention"],
    ['local:///x?onDelete=maybe', "store 'x': 'maybe' is not a value for onDelete"],
    ['local:///x?readOnly=1', "store 'x': '1' is not a value for readOnly"],
    ['local:///%zz', "'local:///%zz' has a broken %-escape"],
    ['local:///a%00b', "'local:///a%00b' is not the URI of a local store: the path contains control characters"],
    ['local:///', 'the root of the whole system cannot be a store'],
    ['local:///x/../..', 'the root of the whole system cannot be a store'],
  ])('%s is rejected: %s', async (uri, message) => {
    await expect(server.core.stores.add('x', uri, aCall())).rejects.toMatchObject({ code: 'invalid', message });
    expect(names()).toEqual(['local']);
  });
});

describe('the default store', () => {
  test('is the store that was chosen, else the preferred store, else the first; a choice survives a restart', async () => {
    expect(server.core.stores.defaultName).toBe('local');
    await add('keep');
    server.core.stores.setDefault('keep');
    expect(await create(undefined, 'a')).toMatchObject({ store: 'keep' });
    expect(server.core.stores.list().map((view) => [view.config.name, view.default])).toEqual([
      ['local', false],
      ['keep', true],
    ]);
    await server.stop();
    await using next = await startCore({ after: server });
    expect(next.core.stores.defaultName).toBe('keep');
    await next.core.stores.remove('keep', aCall());
    expect(next.core.stores.defaultName).toBe('local');
  });
});

describe('configure', () => {
  const configure = (...configs: StoreConfig[]): Promise<void> =>
    server.core.stores.configure(configs, configs[0]?.name, aCall());

  test('adds, removes and changes stores, and does not touch unchanged ones', async () => {
    const [a, b] = [await makeFolder('a'), await makeFolder('b')];
    await configure(inFile('a', `local://${a}`), inFile('b', `local://${b}`));
    expect(names()).toEqual(['a', 'b']);
    const openStore = server.core.stores.view('a').store;
    await create('b', 'x');
    await configure(inFile('a', `local://${a}`), inFile('b', `local://${b}?onDelete=archive`));
    expect(server.core.stores.view('a').store).toBe(openStore);
    expect(server.core.stores.view('b').config.policy.onDelete).toBe('archive');
    expect(await resolve('b..x')).toMatchObject({ name: 'x' });
    await configure(inFile('b', `local://${b}?onDelete=archive`));
    expect(names()).toEqual(['b']);
    expect(server.core.stores.defaultName).toBe('b');
  });

  test('keeps a store that was added through the API', async () => {
    await add('keep');
    await configure(inFile('a', `local://${await makeFolder('a')}`));
    expect(names().sort()).toEqual(['a', 'keep']);
  });

  test('does not bring back a store that was removed through the API while the file was read', async () => {
    await add('keep');
    const { config } = server.core.stores.view('keep');
    await server.core.stores.remove('keep', aCall());
    await configure(inFile('a', `local://${await makeFolder('a')}`), config);
    expect(names()).toEqual(['a']);
  });

  test('leaves a store unchanged if its new options are invalid', async () => {
    const a = await makeFolder('a');
    await configure(inFile('a', `local://${a}`));
    await create('a', 'x');
    await configure(inFile('a', `local://${a}?layout=image`));
    expect(server.core.stores.view('a').config.uri).toBe(`local://${a}`);
    expect(await create('a', 'y')).toMatchObject({ name: 'y' });
    await configure(inFile('a', `local://${server.folder}/nowhere`));
    expect(await resolve('a..x')).toMatchObject({ name: 'x' });
  });

  test('lists a store that cannot be opened with its problem, and retries it', async () => {
    const path = join(server.folder, 'later');
    await configure(inFile('later', `local://${path}`));
    expect(server.core.stores.view('later').problem).toMatchObject({ reason: 'store-root-missing' });
    await expect(create('later', 'x')).rejects.toMatchObject({
      code: 'unavailable',
      message: `store 'later' cannot be used: the store's directory ${path} does not exist`,
    });
    await mkdir(path);
    await configure(inFile('later', `local://${path}`));
    expect(await create('later', 'x')).toMatchObject({ name: 'x' });
  });

  test('gives a store whose directory changed the volumes of the new directory', async () => {
    const [a, b] = [await makeFolder('a'), await makeFolder('b')];
    await configure(inFile('a', `local://${a}`));
    const first = await create('a', 'same');
    await configure(inFile('a', `local://${b}`));
    const second = await create('a', 'same');
    expect(second.id).not.toBe(first.id);
    await configure(inFile('a', `local://${a}`));
    expect(await resolve('a..same')).toMatchObject({ id: first.id });
  });

  test('does not let volumes of a removed store make names ambiguous', async () => {
    const [a, b, c] = [await makeFolder('a'), await makeFolder('b'), await makeFolder('c')];
    const otherStores = [inFile('c', `local://${c}`), inFile('b', `local://${b}`)];
    await configure(...otherStores, inFile('a', `local://${a}`));
    await create('a', 'x');
    const { id } = await create('b', 'x');
    await configure(...otherStores);
    expect(await resolve('x')).toMatchObject({ id });
  });
});

describe('a lookup of volumes', () => {
  test('by a bare name finds the volume in the default store, else the only one with that name, else fails as ambiguous', async () => {
    await add('one');
    await add('two');
    const volumeInOne = await create('one', 'x');
    expect(await resolve('x')).toEqual(volumeInOne);
    await create('two', 'x');
    await expect(resolve('x')).rejects.toMatchObject({
      code: 'conflict',
      reason: 'volume-ambiguous',
      message: "'x' is in several stores: one/x, two/x",
      action:
        'Specify one as store/name. For Docker and Podman, write store..name, also to create another volume of that name.',
    });
    expect(await server.core.catalogue.resolve('x', aCall(), (store) => store === 'one')).toEqual(volumeInOne);
    const preferred = await create('local', 'x');
    expect(await resolve('x')).toEqual(preferred);
    expect(await resolve('one..x')).toEqual(volumeInOne);
  });

  test('reports volumes of stores that are not visible as not found', async () => {
    await add('one');
    await add('two');
    const { id } = await create('two', 'x');
    const outside = { code: 'not-found', reason: 'volume-unknown', action: 'List the volumes: stowage volume list' };
    for (const ref of [id, newVolumeId(), 'two..x', 'two..nobody', 'nope..x', 'x']) {
      const lookup = server.core.catalogue.resolve(ref, aCall(), (store) => store === 'one');
      await expect(lookup, ref).rejects.toMatchObject(outside);
    }
  });

  test('distinguishes a store name that ends in a dot from volume names with dots', async () => {
    await add('s.');
    const { id } = await create('s.', 'a.b');
    expect(await resolve('s...a.b')).toMatchObject({ id });
  });

  test('reports unrecorded volumes as unavailable, not as unknown, while a store is down', async () => {
    await add('keep');
    const { id } = await create('keep', 'a');
    await server.stop();
    await rename(join(server.folder, 'keep'), join(server.folder, 'aside'));
    await using next = await startCore({ after: server });
    const unknown = newVolumeId();
    for (const ref of [unknown, 'nobody', 'keep..nobody']) {
      await expect(next.core.catalogue.resolve(ref, aCall())).rejects.toMatchObject({
        code: 'unavailable',
        reason: 'volume-lookup-incomplete',
        action: 'Try again when it is back: stowage store check keep',
      });
    }
    await expect(next.core.catalogue.resolve('local..nobody', aCall())).rejects.toMatchObject({ code: 'not-found' });
    // The volume is on record, but its store is down.
    await expect(next.core.volumes.inspect(id, aCall())).rejects.toMatchObject({ code: 'unavailable' });
    await expect(next.core.deletions.delete(id, undefined, aCall())).rejects.toMatchObject({ code: 'unavailable' });
    await rename(join(server.folder, 'aside'), join(server.folder, 'keep'));
    expect(await next.core.stores.check('keep', aCall())).toMatchObject({ ok: true });
    await expect(next.core.catalogue.resolve(unknown, aCall())).rejects.toMatchObject({ code: 'not-found' });
    expect(await next.core.volumes.inspect(id, aCall())).toMatchObject({ condition: 'ok' });
  });

  test('detects at once directories that appear in and disappear from a read-only store', async () => {
    const path = await makeFolder('media');
    await mkdir(join(path, 'films'));
    await add('media', '?readOnly=true');
    const page = async (): Promise<string[]> => {
      const query = { stores: undefined, labels: {}, contains: undefined, after: undefined, limit: 10 };
      return (await server.core.catalogue.page(query, aCall())).volumes.map((volume) => volume.name);
    };
    expect(await page()).toEqual(['films']);
    await mkdir(join(path, 'songs'));
    await writeFile(join(path, 'a-file'), '');
    expect(await page()).toEqual(['films', 'songs']);
    const songs = await resolve('media..songs');
    await mkdir(join(path, 'books'));
    expect(await resolve('books')).toMatchObject({ store: 'media' });
    await rm(join(path, 'songs'), { recursive: true });
    await expect(server.core.volumes.inspect(songs.id, aCall())).rejects.toMatchObject({ code: 'not-found' });
    expect(await page()).toEqual(['books', 'films']);
    await expect(resolve(songs.id)).rejects.toMatchObject({ code: 'not-found' });
    await expect(create('media', 'x')).rejects.toMatchObject({
      code: 'denied',
      message: "store 'media' is read-only",
      action: 'Use another store, or ask the administrator to change the store.',
    });
    await expect(server.core.deletions.delete('films', undefined, aCall())).rejects.toMatchObject({ code: 'denied' });
  });

  test('lists the other stores while a read-only store is down', async () => {
    const path = await makeFolder('media');
    await add('media', '?readOnly=true');
    await create('local', 'a');
    await rm(path, { recursive: true });
    const query = { stores: undefined, labels: {}, contains: undefined, after: undefined, limit: 10 };
    const { volumes, unanswered } = await server.core.catalogue.page(query, aCall());
    expect({ names: volumes.map((volume) => volume.name), unanswered }).toEqual({
      names: ['a'],
      unanswered: ['media'],
    });
  });

  test('finds volumes in their own store if a read-only store has the same directory', async () => {
    const { id } = await create('local', 'a');
    await server.core.stores.add('view', `local://${server.storeFolder}?readOnly=true`, aCall());
    expect(await resolve(id)).toMatchObject({ store: 'local' });
    expect(await server.core.volumes.label(id, { x: '1' }, undefined, aCall())).toMatchObject({ store: 'local' });
  });
});

test('an unreadable record prevents neither opening its store nor finding other volumes', async () => {
  const { id } = await create('local', 'good');
  await server.stop();
  await mkdir(join(server.storeFolder, 'bad'));
  await writeFile(join(server.storeFolder, 'bad.meta'), '');
  await mkdir(join(server.storeFolder, 'worse'));
  await writeFile(join(server.storeFolder, 'worse.meta'), '{"version":');
  await using next = await startCore({ after: server });
  expect(next.core.stores.view('local').problem).toBeUndefined();
  expect(await next.core.catalogue.resolve('good', aCall())).toMatchObject({ id });
  const orphans = await next.core.adoptions.orphans('local', aCall());
  expect(orphans.map((orphan) => [orphan.kind, orphan.name]).sort()).toEqual([
    ['unreadable-record', 'bad'],
    ['unreadable-record', 'worse'],
  ]);
});

test('a check reports why a store cannot be opened', async () => {
  const path = join(server.folder, 'gone');
  const log = collectingLog();
  await server.core.stores.configure([inFile('gone', `local://${path}`)], undefined, aCall({ log }));
  expect(await server.core.stores.check('gone', aCall())).toEqual({
    ok: false,
    steps: [
      {
        step: 'open',
        ok: false,
        detail: `store 'gone' cannot be used: the store's directory ${path} does not exist`,
        action: `Mount the disk that holds it, or create the directory if the store is new: mkdir -p ${path}`,
        reason: 'store-root-missing',
      },
    ],
    totalBytes: undefined,
    freeBytes: undefined,
  });
});
