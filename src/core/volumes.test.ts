import { existsSync } from 'node:fs';
import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Volume } from './model.ts';
import type { NewVolume } from './volumes.ts';

let server: TestCore;
let kind: GatedKind;

const newVolume = (name: string, more: Partial<NewVolume> = {}): NewVolume => ({
  store: undefined,
  name,
  bytes: undefined,
  access: undefined,
  labels: {},
  ...more,
});

const create = (name: string, properties: Partial<NewVolume> = {}): Promise<Volume> =>
  server.core.volumes.create(newVolume(name, properties), aCall());

/** Returns the error that the promise rejects with. */
const rejectionOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => {
      throw new Error('it succeeded');
    },
    (thrown: unknown) => thrown,
  );

beforeEach(async () => {
  kind = gated(createLocalStoreKind());
  server = await startCore({ kinds: [kind] });
  onTestFinished(() => server[Symbol.asyncDispose]());
});

describe('the creation of a volume', () => {
  test('creates the directory, records the volume and publishes events', async () => {
    const lastSeqBefore = server.core.events.lastSeq;
    const volume = await create('photos', { bytes: 1000n, labels: { b: '2', a: '1' } });
    expect(volume).toMatchObject({
      name: 'photos',
      store: 'local',
      bytes: 1000n,
      labels: { a: '1', b: '2' },
      revision: 1,
    });
    expect(existsSync(join(server.storeFolder, 'photos'))).toBe(true);
    expect(server.core.records.volumes.byId(volume.id)).toEqual(volume);
    expect(server.core.events.eventsAfter(lastSeqBefore)?.map((event) => event.type)).toEqual([
      'operation.started',
      'volume.created',
      'operation.ended',
    ]);
  });

  test('returns the same volume for a repeated request, without a second operation', async () => {
    const call = aCall();
    const first = await server.core.volumes.create(newVolume('a', { bytes: 5n }), call);
    const operations = server.core.operations.page({ limit: 10 }).items.length;
    expect(await server.core.volumes.create(newVolume('a', { bytes: 5n }), call)).toEqual(first);
    expect(server.core.operations.page({ limit: 10 }).items).toHaveLength(operations);
  });

  test('returns the volume of a repeated request even if it was renamed, and creates no second one', async () => {
    const call = aCall();
    const first = await server.core.volumes.create(newVolume('a'), call);
    const renamed = await server.core.volumes.rename(first.id, 'b', undefined, aCall());
    expect(await server.core.volumes.create(newVolume('a'), call)).toEqual(renamed);
    expect(existsSync(join(server.storeFolder, 'a'))).toBe(false);
    // The renamed volume belongs to the first request only.
    expect((await create('a')).id).not.toBe(first.id);
  });

  test('rejects the same request id with other parameters', async () => {
    const call = aCall();
    await server.core.volumes.create(newVolume('a', { bytes: 5n }), call);
    await expect(server.core.volumes.create(newVolume('a', { bytes: 6n }), call)).rejects.toMatchObject({
      code: 'exists',
      reason: 'request-differs',
      message: "volume 'local/a' was created by the same request with other parameters",
    });
  });

  test('rejects a taken name, with a command that shows the existing volume', async () => {
    await create('a');
    await expect(create('a')).rejects.toMatchObject({
      code: 'exists',
      message: "there is a volume 'local/a' already",
      action: 'Choose another name, or use it as it is: stowage volume show local/a',
    });
  });

  test.each([
    ['x.meta', 'name-invalid'],
    ['..', 'name-invalid'],
    ['', 'name-invalid'],
    ['.stowage', 'name-invalid'],
  ])('rejects the name %j', async (name, reason) => {
    await expect(create(name)).rejects.toMatchObject({ code: 'invalid', reason });
  });

  test.each([0n, -1n, (1n << 60n) + 1n])('a size of %d is out of range', async (bytes) => {
    await expect(create('a', { bytes })).rejects.toMatchObject({ code: 'out-of-range', reason: 'size-out-of-range' });
    expect(await readdir(server.storeFolder)).toEqual(['.stowage']);
  });

  test('rejects a block volume on a store of directories', async () => {
    await expect(create('a', { access: 'block' })).rejects.toMatchObject({
      code: 'unsupported',
      message: "store 'local' has no block volumes",
    });
  });

  test('rejects a name whose directory exists, and leaves the directory alone', async () => {
    await mkdir(join(server.storeFolder, 'mine'));
    await writeFile(join(server.storeFolder, 'mine', 'file'), 'text');
    await expect(create('mine')).rejects.toMatchObject({ code: 'exists' });
    expect(await readdir(server.storeFolder)).toEqual(['.stowage', 'mine']);
    expect(server.core.operations.page({ limit: 1 }).items[0]?.operation.state).toBe('failed');
  });
});

describe('an existing volume', () => {
  test('is enlarged by an expansion, which may be repeated, and never shrunk', async () => {
    const { id } = await create('a', { bytes: 10n });
    const larger = await server.core.volumes.expand(id, 20n, undefined, aCall());
    expect(larger).toMatchObject({ bytes: 20n, revision: 2 });
    expect(await server.core.volumes.expand(id, 20n, undefined, aCall())).toEqual(larger);
    await expect(server.core.volumes.expand(id, 19n, undefined, aCall())).rejects.toMatchObject({
      code: 'out-of-range',
      message: "volume 'local/a' has 20B and cannot shrink to 19B",
    });
  });

  test('keeps its id when it is renamed, and its directory moves', async () => {
    const { id } = await create('a');
    const renamed = await server.core.volumes.rename('a', 'b', undefined, aCall());
    expect(renamed).toMatchObject({ id, name: 'b' });
    expect((await readdir(server.storeFolder)).sort()).toEqual(['.stowage', 'b', 'b.meta']);
    await expect(server.core.catalogue.resolve('a', aCall())).rejects.toMatchObject({ code: 'not-found' });
    expect(await server.core.volumes.rename(id, 'b', undefined, aCall())).toEqual(renamed);
  });

  test('cannot be renamed to a taken name', async () => {
    await create('a');
    await create('b');
    await expect(server.core.volumes.rename('a', 'b', undefined, aCall())).rejects.toMatchObject({ code: 'exists' });
  });

  test('has its labels merged: null removes a label, and invalid labels are rejected', async () => {
    const { id } = await create('a', { labels: { keep: '1', drop: '2' } });
    const changed = await server.core.volumes.label(id, { drop: null, add: '3' }, undefined, aCall());
    expect(changed.labels).toEqual({ add: '3', keep: '1' });
    for (const labels of [{ 'a b': '' }, { 'stowage.dev/x': '' }, { a: '\n' }, { a: 'x'.repeat(257) }]) {
      await expect(server.core.volumes.label(id, labels, undefined, aCall())).rejects.toMatchObject({
        reason: 'label-invalid',
      });
    }
  });

  test('cannot be changed with an outdated revision', async () => {
    const { id } = await create('a');
    await expect(server.core.volumes.label(id, { a: '1' }, 7, aCall())).rejects.toMatchObject({
      code: 'stale',
      message: "volume 'local/a' is at revision 1, not 7",
    });
    expect(await server.core.volumes.label(id, { a: '1' }, 1, aCall())).toMatchObject({ revision: 2 });
  });

  test('is reported with missing data by an inspection', async () => {
    const { id } = await create('a');
    expect(await server.core.volumes.inspect(id, aCall())).toMatchObject({ condition: 'ok' });
    await rm(join(server.storeFolder, 'a'), { recursive: true });
    expect(await server.core.volumes.inspect(id, aCall())).toMatchObject({ condition: 'missing' });
  });

  test('has a usage that counts its own data only', async () => {
    await create('a');
    await create('b');
    await writeFile(join(server.storeFolder, 'a', 'file'), Buffer.alloc(1 << 20));
    const usage = await server.core.volumes.usage('a', aCall());
    expect(Number(usage.bytes)).toBeGreaterThanOrEqual(1 << 20);
    expect(Number((await server.core.volumes.usage('b', aCall())).bytes)).toBeLessThan(1 << 20);
  });
});

describe('several operations at once on one volume', () => {
  test('run in the order in which they arrived', async () => {
    const { id } = await create('a', { bytes: 1n });
    const gate = kind.close('label');
    const first = server.core.volumes.label(id, { step: 'first' }, undefined, aCall());
    await gate.reached;
    const second = server.core.volumes.expand(id, 50n, undefined, aCall());
    const third = server.core.deletions.delete(id, undefined, aCall());
    expect(server.core.operations.running).toBe(1);
    gate.open();
    expect(await first).toMatchObject({ revision: 2 });
    expect(await second).toMatchObject({ revision: 3, labels: { step: 'first' }, bytes: 50n });
    expect(await third).toEqual({ outcome: 'deleted', expiresAt: undefined });
  });

  test('do not overlap, even if one waited for a rename and another uses the new name', async () => {
    const { id } = await create('a', { bytes: 1n });
    const renaming = kind.close('rename');
    const renamed = server.core.volumes.rename(id, 'c', undefined, aCall());
    await renaming.reached;
    // The expansion has resolved the volume under its old name.
    const waitingExpand = server.core.volumes.expand('a', 50n, undefined, aCall());
    const expanding = kind.close('expand');
    renaming.open();
    await renamed;
    await expanding.reached;
    const otherLabel = server.core.volumes.label('c', { x: '1' }, undefined, aCall());
    await new Promise((resolve) => setImmediate(resolve));
    expect(server.core.operations.running).toBe(1);
    expanding.open();
    expect(await waitingExpand).toMatchObject({ name: 'c', bytes: 50n });
    expect(await otherLabel).toMatchObject({ labels: { x: '1' }, bytes: 50n });
  });

  test('both succeed if they are renames to the same name', async () => {
    const { id } = await create('a');
    const both = await Promise.all([
      server.core.volumes.rename(id, 'b', undefined, aCall()),
      server.core.volumes.rename(id, 'b', undefined, aCall()),
    ]);
    expect(both.map((volume) => volume.name)).toEqual(['b', 'b']);
  });

  test('create one volume if they are 50 creates of one name', async () => {
    const results = await Promise.allSettled(Array.from({ length: 50 }, () => create('same')));
    expect(results.filter((result) => result.status === 'fulfilled')).toHaveLength(1);
    const reasons = results.flatMap((result) => (result.status === 'rejected' ? [result.reason.code] : []));
    expect(new Set(reasons)).toEqual(new Set(['exists']));
    expect((await readdir(server.storeFolder)).sort()).toEqual(['.stowage', 'same', 'same.meta']);
  });
});

describe('on a store with limits', () => {
  const add = async (query: string): Promise<void> => {
    const path = join(server.folder, 'limited');
    await mkdir(path);
    await server.core.stores.add('limited', `local://${path}?${query}`, aCall());
  };
  const limited = (name: string, bytes?: bigint): Promise<Volume> => create(name, { store: 'limited', bytes });

  test('50 concurrent creates never exceed maxVolumes, and reach it exactly', async () => {
    await add('maxVolumes=10');
    const results = await Promise.allSettled(Array.from({ length: 50 }, (_, i) => limited(`v${i}`)));
    const rejections = results.flatMap((result) => (result.status === 'rejected' ? [result.reason] : []));
    expect(rejections).toHaveLength(40);
    for (const error of rejections) {
      expect(error).toMatchObject({
        code: 'exhausted',
        reason: 'store-volumes-limit',
        message: "store 'limited' is full: it may hold 10 volumes",
      });
    }
    await server.core.deletions.delete('limited..v0', undefined, aCall());
    await limited('again');
    await expect(limited('more')).rejects.toMatchObject({ code: 'exhausted' });
  });

  test('a volume is not counted twice between its reservation and its record', async () => {
    await add('maxVolumes=200');
    const makers = Array.from({ length: 8 }, async (_, maker) => {
      for (let i = 0; i < 25; i++) await limited(`m${maker}-${i}`);
    });
    await Promise.all(makers);
    expect(server.core.records.volumes.totals('limited' as never).volumes).toBe(200);
  });

  test('50 concurrent creates and expansions never exceed maxBytes', async () => {
    await add('maxBytes=1000');
    await limited('base', 100n);
    const grow = Array.from({ length: 25 }, (_, i) =>
      server.core.volumes.expand('limited..base', BigInt(101 + i * 40), undefined, aCall()),
    );
    const results = await Promise.allSettled([...grow, ...Array.from({ length: 25 }, (_, i) => limited(`v${i}`, 90n))]);
    const { bytes } = server.core.records.volumes.totals('limited' as never);
    expect(bytes).toBeLessThanOrEqual(1000n);
    expect(bytes).toBeGreaterThan(900n);
    for (const result of results) {
      if (result.status === 'rejected') expect(['exhausted', 'out-of-range']).toContain(result.reason.code);
    }
  });

  test('two concurrent expansions cannot both use the last free bytes', async () => {
    await add('maxBytes=100');
    await limited('a', 10n);
    await limited('b', 10n);
    const gate = kind.close('expand');
    const first = server.core.volumes.expand('limited..a', 80n, undefined, aCall());
    await gate.reached;
    expect(await rejectionOf(server.core.volumes.expand('limited..b', 80n, undefined, aCall()))).toMatchObject({
      code: 'exhausted',
      message: "store 'limited' has no room for 70B: 10B of 100B are left",
    });
    gate.open();
    expect(await first).toMatchObject({ bytes: 80n });
    expect(await server.core.volumes.expand('limited..b', 20n, undefined, aCall())).toMatchObject({ bytes: 20n });
  });

  test('a volume without a size gets the default one', async () => {
    await add('defaultSize=64M');
    expect(await limited('a')).toMatchObject({ bytes: 64n << 20n });
  });

  test('a restore from the trash counts towards the limits; a failed create does not', async () => {
    await add('maxVolumes=1&onDelete=archive');
    const { id } = await limited('a');
    await server.core.deletions.delete(id, undefined, aCall());
    await mkdir(join(server.folder, 'limited', 'taken'));
    await expect(limited('taken')).rejects.toMatchObject({ code: 'exists' });
    await limited('b');
    await expect(server.core.deletions.restore(id, undefined, () => true, aCall())).rejects.toMatchObject({
      code: 'exhausted',
    });
    await server.core.deletions.delete('limited..b', undefined, aCall());
    expect(await server.core.deletions.restore(id, undefined, () => true, aCall())).toMatchObject({ id, name: 'a' });
  });
});
