import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { replaceVerbs } from '#testing/fakes/wrapped-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import { StowageError } from './errors.ts';
import type { Volume } from './model.ts';
import { newVolumeId } from './names.ts';
import type { StoreKind } from './ports.ts';

/** While true, the server of a shared store lists its records, but refuses to return them. */
let isDenied = false;

/** Like a server with root squash. The process marks stay readable. */
function withRootSquash(kind: StoreKind): StoreKind {
  return {
    ...kind,
    open: async (...about) => {
      const store = await kind.open(...about);
      const get: typeof store.get = async (...which) => {
        if (!isDenied) return await store.get(...which);
        throw new StowageError('not permitted', { code: 'denied', reason: 'store-permission', action: 'Ask.' });
      };
      return replaceVerbs(store, { get });
    },
  };
}

const kinds = () => [createLocalStoreKind(), withRootSquash(createNfsStoreKind(systemClock()))];

/** The server, and the folder of the store's records. */
let server: TestCore;
let folder: string;

async function exportUri(): Promise<string> {
  const parent = await mkdtemp(join(tmpdir(), 'stowage-unreadable-'));
  onTestFinished(() => rm(parent, { recursive: true, force: true }));
  folder = await mkdtemp(join(parent, 'export-'));
  const nfs = await createNfsServer({
    clock: systemClock(),
    directory: folder,
    state: join(parent, 'state'),
    port: 0,
    path: '/export',
    squash: 'none',
    onError: () => undefined,
  });
  onTestFinished(() => nfs.close());
  return `nfs://${nfs.host}/export?port=${nfs.port}&mountport=${nfs.port}`;
}

async function diskUri(): Promise<string> {
  folder = await mkdtemp(join(tmpdir(), 'stowage-unreadable-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return `local://${folder}`;
}

const create = (name: string): Promise<Volume> =>
  server.core.volumes.create({ store: 'store', name, bytes: undefined, access: undefined, labels: {} }, aCall());
const resolve = (ref: string): Promise<Volume> => server.core.catalogue.resolve(ref, aCall());
const remove = (id: string): Promise<unknown> => server.core.deletions.delete(id, undefined, aCall());

/** Changes the record to the format of a newer Stowage. */
async function makeNewer(name: string): Promise<void> {
  const path = join(folder, `${name}.meta`);
  await writeFile(path, (await readFile(path, 'utf8')).replace('"version":1', '"version":9'));
}

async function makeOlder(name: string): Promise<void> {
  const path = join(folder, `${name}.meta`);
  await writeFile(path, (await readFile(path, 'utf8')).replace('"version":9', '"version":1'));
}

/** Starts a server whose own records are empty. */
async function restartWithoutRecords(uri: string): Promise<void> {
  await server[Symbol.asyncDispose]();
  server = await startWithStore(uri);
}

async function startWithStore(uri: string): Promise<TestCore> {
  const restarted = await startCore({ kinds: kinds() });
  onTestFinished(() => restarted[Symbol.asyncDispose]());
  await restarted.core.stores.add('store', uri, aCall());
  return restarted;
}

describe.each([
  ['a store that others share', exportUri],
  ['a store of this machine', diskUri],
])('records that cannot be read, on %s', (_which, uriOf) => {
  let uri: string;

  beforeEach(async () => {
    uri = await uriOf();
    server = await startWithStore(uri);
  });

  test('do not make a volume look gone: it is neither forgotten nor deleted', async () => {
    const { id } = await create('a');
    await create('b');
    await makeNewer('a');
    // Other volumes are not affected.
    expect(await resolve('store..b')).toMatchObject({ name: 'b' });
    for (const ref of [id, 'store..a', 'a']) expect(await resolve(ref)).toMatchObject({ id });
    await expect(remove(id)).rejects.toMatchObject({ code: 'unsupported', reason: 'format-newer' });
    expect(await readdir(folder)).toEqual(expect.arrayContaining(['a', 'a.meta']));
    await makeOlder('a');
    await remove(id);
    expect((await readdir(folder)).filter((name) => name.startsWith('a'))).toEqual([]);
  });

  test('may belong to any unknown volume, so no volume is reported as not found', async () => {
    const { id } = await create('a');
    await makeNewer('a');
    await restartWithoutRecords(uri);
    const incomplete = {
      code: 'unavailable',
      reason: 'volume-lookup-incomplete',
      action: 'Repair the record and try again. To see what is wrong with it: stowage store orphans store',
    };
    for (const ref of [id, newVolumeId()])
      await expect(resolve(ref)).rejects.toMatchObject({
        ...incomplete,
        message: `volume '${ref}' cannot be looked up: it may be 'store/a', whose record cannot be read`,
      });
    await expect(remove(id)).rejects.toMatchObject(incomplete);
    for (const ref of ['store..a', 'a']) await expect(resolve(ref)).rejects.toMatchObject({ reason: 'format-newer' });
    await expect(resolve('store..nobody')).rejects.toMatchObject({ reason: 'volume-unknown' });
  });

  test('stop having these effects once they can be read or are gone', async () => {
    const { id } = await create('a');
    await makeNewer('a');
    await restartWithoutRecords(uri);
    await expect(resolve(id)).rejects.toMatchObject({ reason: 'volume-lookup-incomplete' });
    await rm(join(folder, 'a.meta'));
    await expect(resolve(id)).rejects.toMatchObject({ reason: 'volume-unknown' });
  });
});

test('a server that shows no records for a while makes no volume look gone, and is trusted again afterwards', async () => {
  server = await startWithStore(await exportUri());
  const { id } = await create('a');
  await resolve(id);
  isDenied = true;
  onTestFinished(() => {
    isDenied = false;
  });
  expect(await resolve(id)).toMatchObject({ id });
  await expect(resolve(newVolumeId())).rejects.toMatchObject({ reason: 'volume-lookup-incomplete' });
  isDenied = false;
  await expect(resolve(newVolumeId())).rejects.toMatchObject({ reason: 'volume-unknown' });
  await remove(id);
  await expect(resolve(id)).rejects.toMatchObject({ reason: 'volume-unknown' });
});

test('a volume whose record was replaced by something else is not considered deleted', async () => {
  server = await startWithStore(await exportUri());
  const { id } = await create('a');
  const path = join(folder, 'a.meta');
  // A folder in the record's place cannot be read, not even by root.
  await rm(path);
  await mkdir(path);
  await expect(remove(id)).rejects.toMatchObject({ reason: 'record-unreadable' });
  expect(await resolve(id)).toMatchObject({ id });
});
