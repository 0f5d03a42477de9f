import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, collectingLog, runMaintenance } from '#testing/core-calls.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { replaceVerbs } from '#testing/fakes/wrapped-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import { StowageError } from './errors.ts';
import type { Volume } from './model.ts';
import type { Store, StoreKind, Trash } from './ports.ts';

let server: TestCore;
let clock: FakeClock;
let root: string;
const everyStore = (): boolean => true;
const hour = 3_600_000;
const day = 86_400_000;

beforeEach(async () => {
  clock = createFakeClock();
  server = await startCore({ clock, kinds: [createLocalStoreKind(clock)] });
  root = join(server.folder, 'keep');
  await mkdir(root);
  onTestFinished(() => server[Symbol.asyncDispose]());
});

const add = (query = ''): Promise<unknown> => server.core.stores.add('keep', `local://${root}?${query}`, aCall());
const create = (name: string): Promise<Volume> =>
  server.core.volumes.create({ store: 'keep', name, bytes: undefined, access: undefined, labels: { l: '1' } }, aCall());
const remove = (ref: string): Promise<unknown> => server.core.deletions.delete(ref, undefined, aCall());
const trash = (): Promise<readonly { readonly volume: Volume; readonly expiresAt: number | undefined }[]> =>
  server.core.deletions.trashOf('keep', aCall());

describe('delete', () => {
  test('destroys the data and frees the name at once', async () => {
    await add();
    const { id } = await create('a');
    expect(await remove(id)).toEqual({ outcome: 'deleted', expiresAt: undefined });
    expect(await readdir(root)).toEqual(['.stowage']);
    const recreated = await create('a');
    expect(recreated.id).not.toBe(id);
  });

  test('makes the id of the volume unknown', async () => {
    await add();
    const { id } = await create('a');
    await remove(id);
    await expect(remove(id)).rejects.toMatchObject({ code: 'not-found', message: `there is no volume '${id}'` });
    await expect(remove('keep..a')).rejects.toMatchObject({
      code: 'not-found',
      message: "there is no volume 'keep/a'",
      action: 'List the volumes: stowage volume list',
    });
  });

  test('rejects an outdated revision without deleting anything', async () => {
    await add();
    const { id } = await create('a');
    await expect(server.core.deletions.delete(id, 9, aCall())).rejects.toMatchObject({ code: 'stale' });
    expect(existsSync(join(root, 'a'))).toBe(true);
  });

  test.each(['delete', 'retain', 'archive'])(
    'destroys an empty volume on request even with onDelete=%s',
    async (policy) => {
      await add(`onDelete=${policy}`);
      const [nothing, something] = [await create('nothing'), await create('something')];
      await writeFile(join(root, 'something', 'file'), '');
      const discard = ({ id }: Volume) => server.core.deletions.delete(id, undefined, aCall(), { discard: true });
      expect(await discard(nothing)).toMatchObject({ outcome: 'deleted' });
      await expect(discard(something)).rejects.toMatchObject({
        code: 'conflict',
        reason: 'volume-not-empty',
        message: "volume 'keep/something' may not be empty",
      });
      expect((await readdir(root)).toSorted()).toEqual(['.stowage', 'something', 'something.meta']);
      expect(await trash()).toEqual([]);
    },
  );

  test('a replayed deletion of an empty volume keeps the volume if it contains data by then', async () => {
    await add('onDelete=retain');
    const { id, name } = await create('a');
    await writeFile(join(root, 'a', 'file'), '');
    const { store, config } = server.core.stores.view('keep');
    if (store === undefined) throw new Error('it is not open');
    const work = { ...aCall(), operation: 'op1-x' as never, progress: () => undefined };
    const params = { id, name, deletedAt: 0, discard: true };
    const replayDelete = () => server.core.deletions.steps['volume.delete']?.(store, config, params, work);
    await expect(replayDelete()).rejects.toMatchObject({ reason: 'volume-not-empty' });
    expect(existsSync(join(root, 'a', 'file'))).toBe(true);
  });

  describe('the deletion of a volume only if it is empty', () => {
    /** Runs after every check and right before the store deletes. */
    let beforeDelete: (() => Promise<void>) | undefined;
    const local = (): StoreKind => {
      const kind = createLocalStoreKind(clock);
      const open: StoreKind['open'] = async (...place) => {
        const store = await kind.open(...place);
        const remove: Store['delete'] = async (...asked) => {
          await beforeDelete?.();
          await store.delete(...asked);
        };
        return replaceVerbs(store, { delete: remove });
      };
      return { ...kind, open };
    };
    const unfinished = () =>
      server.core.operations
        .page({ stores: ['keep'], limit: 100 })
        .items.filter(({ operation }) => operation.state === 'running');
    const discard = (id: string) => server.core.deletions.delete(id, undefined, aCall(), { discard: true });

    beforeEach(async () => {
      beforeDelete = undefined;
      await server[Symbol.asyncDispose]();
      server = await startCore({ clock, kinds: [local()] });
      root = join(server.folder, 'keep');
      await mkdir(root);
    });

    test('keeps a volume that a program writes to after the check for emptiness', async () => {
      await add('onDelete=archive');
      const volume = await create('a');
      beforeDelete = () => writeFile(join(root, 'a', 'file'), 'precious');
      await expect(discard(volume.id)).rejects.toMatchObject({
        code: 'conflict',
        reason: 'volume-not-empty',
        message: "volume 'keep/a' may not be empty",
      });
      expect(await readFile(join(root, 'a', 'file'), 'utf8')).toBe('precious');
      expect(await server.core.catalogue.resolve(volume.id, aCall())).toEqual(volume);
      expect(unfinished()).toEqual([]);
      await server.core.stores.view('keep').store?.housekeeping?.reclaim?.(aCall());
      expect((await readdir(root)).toSorted()).toEqual(['.stowage', 'a', 'a.meta']);
      expect(await readdir(join(root, '.stowage', 'deleting'))).toEqual([]);
      await rm(join(root, 'a', 'file'));
      beforeDelete = undefined;
      expect(await discard(volume.id)).toMatchObject({ outcome: 'deleted' });
      expect(await readdir(root)).toEqual(['.stowage']);
    });

    test('keeps an image that is mounted after the check for use', async () => {
      await add('layout=image&onDelete=archive');
      const image = { store: 'keep', name: 'a', bytes: 16n << 20n, access: 'block', labels: {} } as const;
      const volume = await server.core.volumes.create(image, aCall());
      beforeDelete = async () => server.core.stores.view('keep').store?.markUsed?.(volume, aCall());
      await expect(discard(volume.id)).rejects.toMatchObject({ code: 'conflict', reason: 'volume-not-empty' });
      expect((await readdir(root)).toSorted()).toEqual(['.stowage', 'a.img', 'a.meta']);
      expect(unfinished()).toEqual([]);
    });

    test('completes a deletion that was interrupted after it removed the data', async () => {
      await add('onDelete=retain');
      const { id } = await create('a');
      await rm(join(root, 'a'), { recursive: true });
      expect(await discard(id)).toMatchObject({ outcome: 'deleted' });
      expect(await readdir(root)).toEqual(['.stowage']);
    });

    test.each(['before', 'after'])(
      'replay completes a deletion that was killed %s it removed the data',
      async (when) => {
        await add('onDelete=retain');
        const { id, name } = await create('a');
        if (when === 'after') await rm(join(root, 'a'), { recursive: true });
        const { store, config } = server.core.stores.view('keep');
        if (store === undefined) throw new Error('the store is not open');
        const work = { ...aCall(), operation: 'op1-x' as never, progress: () => undefined };
        const params = { id, name, deletedAt: 0, discard: true };
        for (const _ of ['first', 'second'])
          await server.core.deletions.steps['volume.delete']?.(store, config, params, work);
        expect(await readdir(root)).toEqual(['.stowage']);
      },
    );
  });

  test('adopting a retained volume restores it, even if it was renamed before', async () => {
    await add('onDelete=retain');
    const { id } = await create('a');
    await server.core.volumes.rename(id, 'b', undefined, aCall());
    await remove(id);
    const { adopted } = await server.core.adoptions.adopt('keep', { dryRun: false, data: true }, aCall());
    expect(adopted).toEqual([{ name: 'b', id, how: 'data' }]);
  });

  test('retain leaves the data, and adopting restores the same volume', async () => {
    await add('onDelete=retain');
    const { id } = await create('a');
    await writeFile(join(root, 'a', 'file'), 'text');
    expect(await remove(id)).toEqual({ outcome: 'retained', expiresAt: undefined });
    await expect(server.core.catalogue.resolve(id, aCall())).rejects.toMatchObject({ code: 'not-found' });
    const { adopted } = await server.core.adoptions.adopt('keep', { dryRun: false, data: true }, aCall());
    expect(adopted).toEqual([{ name: 'a', id, how: 'data' }]);
    expect(await readFile(join(root, 'a', 'file'), 'utf8')).toBe('text');
    expect(await server.core.catalogue.resolve('keep..a', aCall())).toMatchObject({ id, labels: { l: '1' } });
  });
});

/** Lists the trash every five minutes: between two listings at most five minutes count as observed. */
async function passObservedTime(ms: number): Promise<void> {
  const longestMs = 5 * 60_000;
  for (let remainingMs = ms; remainingMs > 0; remainingMs -= longestMs) {
    clock.advance(Math.min(remainingMs, longestMs));
    await server.core.deletions.purgeExpired(aCall());
  }
}

describe('the trash', () => {
  test('keeps a deleted volume until its retention has expired, and not longer', async () => {
    await add('onDelete=archive&retention=2h');
    const { id } = await create('a');
    expect(await remove(id)).toEqual({ outcome: 'archived', expiresAt: clock.now() + 2 * hour });
    await passObservedTime(2 * hour - 1);
    await runMaintenance(server.core);
    expect(await trash()).toMatchObject([{ volume: { id }, expiresAt: clock.now() + 1 }]);
    await passObservedTime(1);
    await runMaintenance(server.core);
    expect(await trash()).toEqual([]);
    await expect(server.core.deletions.restore(id, undefined, everyStore, aCall())).rejects.toMatchObject({
      code: 'not-found',
      reason: 'trash-unknown',
    });
  });

  test('is not emptied when the clock jumps ahead', async () => {
    await add('onDelete=archive&retention=2h');
    await remove((await create('a')).id);
    await runMaintenance(server.core);
    clock.jump(30 * day);
    await runMaintenance(server.core);
    await passObservedTime(2 * hour - 1);
    await runMaintenance(server.core);
    expect(await trash()).toHaveLength(1);
    await passObservedTime(1);
    await runMaintenance(server.core);
    expect(await trash()).toEqual([]);
  });

  test('keeps a deleted volume until its expiry date even if the clock was set back', async () => {
    await add('onDelete=archive&retention=2h');
    await remove((await create('a')).id);
    clock.jump(-hour);
    await passObservedTime(3 * hour - 1);
    await runMaintenance(server.core);
    expect(await trash()).toHaveLength(1);
    await passObservedTime(1);
    await runMaintenance(server.core);
    expect(await trash()).toEqual([]);
  });

  test('does not count the time while Stowage was down, and continues counting after a restart', async () => {
    await add('onDelete=archive&retention=2h');
    await remove((await create('a')).id);
    await passObservedTime(hour);
    await runMaintenance(server.core);
    await server.stop();
    clock.jump(30 * day);
    const kinds = [createLocalStoreKind(clock)];
    server = await startCore({ after: server, clock, kinds });
    await runMaintenance(server.core);
    await passObservedTime(hour - 1);
    await runMaintenance(server.core);
    expect(await trash()).toHaveLength(1);
    await passObservedTime(1);
    await runMaintenance(server.core);
    expect(await trash()).toEqual([]);
    await server.stop();
    await rm(server.folder, { recursive: true });
  });

  test('purges expired entries even if other entries cannot be purged', async () => {
    const unpurgeableIds = new Set<string>();
    const local = createLocalStoreKind(clock);
    const kind: StoreKind = {
      ...local,
      open: async (...how) => {
        const opened = await local.open(...how);
        const purgeExpired: Trash['purgeExpired'] = (id, scope) => {
          if (!unpurgeableIds.has(id)) return opened.trash.purgeExpired(id, scope);
          throw new StowageError('it is stuck', { code: 'conflict', reason: 'path-moved', action: 'None.' });
        };
        return replaceVerbs(opened, { 'trash.purgeExpired': purgeExpired });
      },
    };
    await server[Symbol.asyncDispose]();
    server = await startCore({ clock, kinds: [kind] });
    root = join(server.folder, 'keep');
    await mkdir(root);
    await add('onDelete=archive&retention=1h');
    for (let i = 0; i < 8; i++) {
      const { id } = await create(`v${i}`);
      await remove(id);
      if (i % 2 === 0) unpurgeableIds.add(id);
    }
    await passObservedTime(hour - 1);
    clock.advance(1);
    const log = collectingLog();
    await server.core.deletions.purgeExpired(aCall({ log }));
    expect(new Set((await trash()).map(({ volume }) => volume.id))).toEqual(unpurgeableIds);
    expect(log.lines.filter((line) => line.startsWith('warn a trash entry could not be purged'))).toHaveLength(4);
  });

  test('applies a changed retention to later deletions only', async () => {
    await add('onDelete=archive&retention=2h');
    const [first, second] = [await create('a'), await create('b')];
    await remove(first.id);
    const expectedBefore = clock.now() + 2 * hour;
    await server.core.stores.remove('keep', aCall());
    await add('onDelete=archive&retention=1h');
    await remove(second.id);
    expect((await trash()).map(({ volume, expiresAt }) => [volume.name, expiresAt]).toSorted()).toEqual([
      ['a', expectedBefore],
      ['b', clock.now() + hour],
    ]);
    await passObservedTime(hour);
    await runMaintenance(server.core);
    expect(await trash()).toMatchObject([{ volume: { id: first.id } }]);
  });

  test('restores a volume completely under its old name, and a repeated restore succeeds', async () => {
    await add('onDelete=archive');
    const { id } = await create('a');
    await writeFile(join(root, 'a', 'file'), 'text');
    await remove(id);
    expect((await readdir(root)).sort()).toEqual(['.stowage']);
    const restored = await server.core.deletions.restore(id, undefined, everyStore, aCall());
    expect(restored).toMatchObject({ id, name: 'a', labels: { l: '1' } });
    expect(await readFile(join(root, 'a', 'file'), 'utf8')).toBe('text');
    expect(await server.core.deletions.restore(id, undefined, everyStore, aCall())).toEqual(restored);
    expect(await trash()).toEqual([]);
  });

  test('returns the same volume to two concurrent restores', async () => {
    await add('onDelete=archive');
    const { id } = await create('a');
    await remove(id);
    const restore = (): Promise<Volume> => server.core.deletions.restore(id, 'b', everyStore, aCall());
    const [one, two] = await Promise.all([restore(), restore()]);
    expect(one).toEqual(two);
  });

  test('rejects a restore whose name is taken by now, and suggests another name', async () => {
    await add('onDelete=archive');
    const { id } = await create('a');
    await remove(id);
    await create('a');
    await expect(server.core.deletions.restore(id, undefined, everyStore, aCall())).rejects.toMatchObject({
      code: 'exists',
      action: 'Restore it under another name: stowage volume restore ID --name NEWNAME',
    });
    expect(await server.core.deletions.restore(id, 'b', everyStore, aCall())).toMatchObject({ id, name: 'b' });
  });

  test('destroys a volume on a purge, but only if the caller may see its store', async () => {
    await add('onDelete=archive');
    const { id } = await create('a');
    await remove(id);
    await expect(server.core.deletions.purge(id, () => false, aCall())).rejects.toMatchObject({ code: 'not-found' });
    await server.core.deletions.purge(id, everyStore, aCall());
    expect(await trash()).toEqual([]);
    await expect(server.core.deletions.purge(id, everyStore, aCall())).rejects.toMatchObject({ code: 'not-found' });
    await expect(server.core.deletions.purge('../etc', everyStore, aCall())).rejects.toMatchObject({
      code: 'not-found',
      message: "there is no volume '../etc' in the trash",
    });
  });

  test('lists all entries even if a store is removed during the listing', async () => {
    await add('onDelete=archive');
    const { id } = await create('a');
    await remove(id);
    await mkdir(join(server.folder, 'other'));
    await server.core.stores.add('other', `local://${server.folder}/other`, aCall());
    const searched = trash();
    const listing = server.core.deletions.trash(['keep', 'other'], aCall());
    await server.core.stores.remove('other', aCall());
    expect(await searched).toHaveLength(1);
    expect(await listing).toMatchObject({ entries: [{ volume: { id } }], unanswered: [] });
    await expect(server.core.deletions.trashOf('other', aCall())).rejects.toMatchObject({
      reason: 'store-unknown',
    });
  });

  test('is listed newest first', async () => {
    await add('onDelete=archive');
    for (const name of ['a', 'b', 'c']) await create(name);
    for (const name of ['b', 'a', 'c']) {
      await remove(`keep..${name}`);
      clock.advance(1000);
    }
    expect((await trash()).map(({ volume }) => volume.name)).toEqual(['c', 'a', 'b']);
  });

  test('does not report an entry as not found while a store is down', async () => {
    await add('onDelete=archive');
    const { id } = await create('a');
    await remove(id);
    await server.stop();
    await rm(root, { recursive: true });
    server = await startCore({ after: server });
    await expect(server.core.deletions.restore(id, undefined, everyStore, aCall())).rejects.toMatchObject({
      code: 'unavailable',
      message: `the trash cannot be searched for '${id}': store 'keep' cannot be used now`,
      action: 'Try again when it is back: stowage store check keep',
    });
    await server.stop();
    await rm(server.folder, { recursive: true });
  });
});

describe('adopt', () => {
  test('adopts directories without copying, reports those that cannot be adopted, and changes nothing in a dry run', async () => {
    await add();
    await mkdir(join(root, 'films'));
    await writeFile(join(root, 'films', 'one'), 'text');
    await mkdir(join(root, 'bad name'));
    await mkdir(join(root, 'x..y'));
    const dry = await server.core.adoptions.adopt('keep', { dryRun: true, data: true }, aCall());
    expect(dry.adopted).toEqual([{ name: 'films', id: undefined, how: 'data' }]);
    expect(existsSync(join(root, 'films.meta'))).toBe(false);
    const real = await server.core.adoptions.adopt('keep', { dryRun: false, data: true }, aCall());
    expect(real.adopted).toMatchObject([{ name: 'films', how: 'data' }]);
    expect(real.skipped.map((skipped) => skipped.name).sort()).toEqual(['bad name', 'x..y']);
    expect(await readFile(join(root, 'films', 'one'), 'utf8')).toBe('text');
    const adoption = await server.core.adoptions.adopt('keep', { dryRun: false, data: true }, aCall());
    expect(adoption.adopted).toEqual([]);
  });

  test('rebuilds the catalogue of a machine that lost its records', async () => {
    await add();
    const { id } = await create('a');
    await server.core.stores.remove('keep', aCall());
    await using other = await startCore();
    await other.core.stores.add('found', `local://${root}`, aCall());
    // Another instance created the volume, so it is not visible until it is adopted.
    await expect(other.core.catalogue.resolve(id, aCall())).rejects.toMatchObject({ code: 'not-found' });
    const { adopted } = await other.core.adoptions.adopt('found', { dryRun: false, data: false }, aCall());
    expect(adopted).toEqual([{ name: 'a', id, how: 'record' }]);
    expect(await other.core.catalogue.resolve('found..a', aCall())).toMatchObject({
      id,
      instance: other.core.instance,
    });
  });

  test('leaves orphans, which are reported with an action', async () => {
    await add();
    for (const name of ['stray', 'bad name', 'lost+found']) await mkdir(join(root, name));
    await writeFile(join(root, 'readme.txt'), '');
    const orphans = await server.core.adoptions.orphans('keep', aCall());
    expect(orphans).toMatchObject([
      { store: 'keep', kind: 'stranger', name: 'bad name' },
      { store: 'keep', kind: 'stranger', name: 'readme.txt', detail: 'it cannot be a volume: it is not a directory' },
      { store: 'keep', kind: 'unrecorded-directory', name: 'stray' },
    ]);
    for (const { action } of orphans) expect(action).not.toBe('');
  });

  test('rejects a read-only store', async () => {
    await add('readOnly=true');
    await expect(server.core.adoptions.adopt('keep', { dryRun: false, data: true }, aCall())).rejects.toMatchObject({
      code: 'denied',
      message: "store 'keep' is read-only",
    });
  });
});
