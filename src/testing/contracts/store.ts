import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Scope, silentLog } from '#base/log.ts';
import type { Orphan, TrashEntry, Volume, VolumeName, VolumeRef, VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import type { Store } from '#core/ports.ts';
import type { FileStore } from '#stores/file-store/verbs.ts';
import { keptForAWeek } from '../trash-retention.ts';
import { refused, twice } from './twice.ts';

/** An initially empty store that a test may change in any way. */
export interface StoreUnderTest<S extends Store = Store> extends AsyncDisposable {
  readonly store: S;
  /** The instance the store was opened for. */
  readonly instance: string;
  /** Closes it and opens it again, as a restart does. */
  reopen(): Promise<S>;
  /** Opens the same store read-only, after closing the writable one. */
  reopenReadOnly(): Promise<S>;
  /** Adds data without a record. */
  plant(name: string): Promise<void>;
  /** Removes a volume's data without calling the store. */
  lose(volume: Volume): Promise<void>;
  /** Writes a mark into a volume's data, so that a test recognizes them. */
  mark(volume: Volume, text: string): Promise<void>;
  readMark(volume: Volume): Promise<string | undefined>;
  /**
   * The number of files and directories of the store, including hidden ones. Shows whether a test left anything behind.
   */
  count(): Promise<number>;
}

export const scope: Scope = { signal: new AbortController().signal, log: silentLog() };

const size = 32n * 1024n * 1024n;
const name = (text: string): VolumeName => volumeName(text);

const facets = ['identity', 'names', 'expand', 'rename', 'usage', 'room', 'trash', 'adoption', 'housekeeping'] as const;
type Facet = (typeof facets)[number];

/**
 * The contract of the port `Store`. `due`: the facets that this store must have, except facets that depend on options.
 */
export function storeContract(
  title: string,
  make: () => Promise<StoreUnderTest>,
  due: readonly Facet[] = facets,
): void {
  const isDue = (...all: readonly Facet[]): boolean => all.every((facet) => due.includes(facet));

  describe(`${title}: the contract of a store`, () => {
    let under: StoreUnderTest;
    /** Each test uses only the facets that are due. */
    let store: FileStore;
    const reopen = async (): Promise<FileStore> => (await under.reopen()) as FileStore;
    const reopenReadOnly = async (): Promise<FileStore> => (await under.reopenReadOnly()) as FileStore;

    beforeEach(async () => {
      under = await make();
      store = under.store as FileStore;
    });
    afterEach(async () => {
      await under[Symbol.asyncDispose]();
    });

    const spec = (called: string, more: Partial<VolumeSpec> = {}): VolumeSpec => ({
      id: newVolumeId(),
      name: name(called),
      bytes: size,
      access: 'filesystem',
      labels: { team: 'a' },
      requestId: `request ${called}`,
      createdAt: 1_700_000_000_000,
      instance: under.instance,
      ...more,
    });
    const create = (called: string): Promise<Volume> => store.create(spec(called), scope);
    const list = async (): Promise<Volume[]> =>
      (await Array.fromAsync(store.list(scope))).sort((a, b) => (a.name < b.name ? -1 : 1));
    const namesOf = async (): Promise<readonly VolumeName[]> =>
      isDue('names') ? await store.names(scope) : (await list()).map((volume) => volume.name);
    const sweep = async (): Promise<void> =>
      isDue('housekeeping') ? await store.housekeeping.sweep(scope) : undefined;
    const reclaim = async (): Promise<void> =>
      isDue('housekeeping') ? await store.housekeeping.reclaim(scope) : undefined;
    const orphans = async (): Promise<readonly Orphan[]> =>
      isDue('housekeeping') ? await store.housekeeping.orphans(scope) : [];
    const trashed = async (): Promise<string[]> => (await trashList()).map((entry) => entry.volume.id);
    const trashList = async (): Promise<readonly TrashEntry[]> => (isDue('trash') ? await store.trash.list(scope) : []);

    test('has the required facets and no others, even when it is read-only', async () => {
      const present = (): readonly Facet[] => facets.filter((facet) => store[facet] !== undefined);
      expect(present()).toEqual(due);
      store = await reopenReadOnly();
      expect(present()).toEqual(due);
    });

    describe('create', () => {
      test('makes the requested volume', async () => {
        const want = spec('a');
        const made = await twice(() => store.create(want, scope));
        expect(made).toEqual({ ...want, enforce: false, store: store.name, revision: 1 });
        expect(await store.get(made.name, scope)).toEqual({ volume: made, condition: 'ok' });
        expect(await list()).toEqual([made]);
        expect(await namesOf()).toEqual([made.name]);
      });

      test('returns the existing volume for the same request, even with another id', async () => {
        const made = await create('a');
        expect(await twice(() => store.create(spec('a', { id: newVolumeId() }), scope))).toEqual(made);
      });

      test('refuses a name that another request has taken', async () => {
        const made = await create('a');
        const error = await refused(() => store.create(spec('a', { requestId: 'another' }), scope));
        expect([error.code, error.reason]).toEqual(['exists', 'volume-exists']);
        expect(await list()).toEqual([made]);
      });

      test.each([
        ['size', { bytes: size * 2n }],
        ['labels', { labels: { team: 'b' } }],
        ['enforcement', { enforce: true }],
      ])('refuses the same request with another %s', async (_what, other) => {
        await create('a');
        const error = await refused(() => store.create(spec('a', other), scope));
        expect([error.code, error.reason]).toEqual(['exists', 'request-differs']);
      });

      if (isDue('adoption'))
        test('refuses a name with data but no record, and leaves the data alone', async () => {
          await under.plant('a');
          const error = await refused(() => create('a'));
          expect([error.code, error.reason]).toEqual(['exists', 'directory-unrecorded']);
          expect(await list()).toEqual([]);
          expect((await store.adoption.adoptable(scope)).filter((one) => one.reason === undefined)).toEqual([
            { name: 'a' },
          ]);
        });

      test('makes one volume for many concurrent calls of the same request', async () => {
        const made = await Promise.all(
          Array.from({ length: 8 }, () => store.create(spec('a', { id: newVolumeId() }), scope)),
        );
        expect(new Set(made.map((volume) => volume.id)).size).toBe(1);
        expect((await list()).length).toBe(1);
      });

      test('gives the name to only one of many different requests', async () => {
        const results = await Promise.allSettled(
          Array.from({ length: 8 }, (_, i) => store.create(spec('a', { requestId: `${i}`, id: newVolumeId() }), scope)),
        );
        expect(results.filter(({ status }) => status === 'fulfilled').length).toBe(1);
        expect((await list()).length).toBe(1);
      });

      test('keeps every label, whatever its name', async () => {
        const labels = JSON.parse('{"__proto__": "x", "constructor": "y", "": "z", "ü": "\\u0000"}');
        const made = await twice(() => store.create(spec('a', { labels }), scope));
        expect(Object.entries((await store.get(made.name, scope))?.volume.labels ?? {})).toEqual(
          Object.entries(labels),
        );
      });

      test('fails with canceled and makes nothing if it was aborted before it began', async () => {
        const error = await refused(() => store.create(spec('a'), { ...scope, signal: AbortSignal.abort() }));
        expect(error.code).toBe('canceled');
        expect(await list()).toEqual([]);
      });
    });

    describe('get and list', () => {
      test('find nothing for a volume that does not exist', async () => {
        expect(await twice(() => store.get(name('a'), scope))).toBeUndefined();
        expect(await twice(list)).toEqual([]);
      });

      test('report a volume whose data are missing', async () => {
        const made = await create('a');
        await under.lose(made);
        const seen = await twice(() => store.get(made.name, scope));
        expect(seen).toMatchObject({ volume: made, condition: 'missing' });
        expect(seen?.detail).toBeTruthy();
        expect(await list()).toEqual([made]);
        if (isDue('housekeeping')) expect(await orphans()).toMatchObject([{ kind: 'missing-data', name: 'a' }]);
      });

      test('return the same volumes after a restart', async () => {
        const made = [await create('a'), await create('b'), await create('c')];
        store = await reopen();
        expect(await list()).toEqual(made);
      });

      test('a restart keeps the identity of the store', async () => {
        const { identity } = store;
        expect(identity === undefined).toBe(!isDue('identity'));
        store = await reopen();
        expect(store.identity).toBe(identity);
      });
    });

    describe('delete', () => {
      test('leaves nothing of the volume behind', async () => {
        const before = await under.count();
        const made = await create('a');
        await under.mark(made, 'data');
        await twice(() => store.delete(made, scope));
        expect(await store.get(made.name, scope)).toBeUndefined();
        await twice(reclaim);
        expect(await under.count()).toBe(before);
        expect(await orphans()).toEqual([]);
      });

      test('leaves another volume of that name alone', async () => {
        const made = await create('a');
        await twice(() => store.delete({ id: newVolumeId(), name: made.name }, scope));
        expect(await list()).toEqual([made]);
      });

      test('succeeds for a volume whose data are gone', async () => {
        const made = await create('a');
        await under.lose(made);
        await twice(() => store.delete(made, scope));
        expect(await list()).toEqual([]);
      });

      test('frees the name', async () => {
        const first = await create('a');
        await under.mark(first, 'first');
        await store.delete(first, scope);
        const second = await store.create(spec('a', { requestId: 'another' }), scope);
        expect(second.id).not.toBe(first.id);
        expect(await under.readMark(second)).toBeUndefined();
      });
    });

    describe('delete with onlyIfEmpty', () => {
      const deleteIfEmpty = (volume: VolumeRef): Promise<void> => store.delete(volume, scope, { onlyIfEmpty: true });

      if (!isDue('usage'))
        test('refuses a volume that was never used, because the store cannot tell whether it is empty', async () => {
          const made = await create('a');
          const error = await refused(() => deleteIfEmpty(made));
          expect([error.code, error.reason]).toEqual(['conflict', 'volume-not-empty']);
          expect(await store.get(made.name, scope)).toEqual({ volume: made, condition: 'ok' });
        });

      if (isDue('usage'))
        test('leaves nothing of an empty volume behind', async () => {
          const before = await under.count();
          const made = await create('a');
          await twice(() => deleteIfEmpty(made));
          expect(await store.get(made.name, scope)).toBeUndefined();
          await twice(reclaim);
          expect(await under.count()).toBe(before);
          expect(await orphans()).toEqual([]);
        });

      test('refuses a volume that was written to after it was found empty, and leaves it intact', async () => {
        const made = await create('a');
        if (isDue('usage')) expect((await store.usage(made, scope)).empty).toBe(true);
        await store.markUsed?.(made, scope);
        await under.mark(made, 'precious');
        const error = await refused(() => deleteIfEmpty(made));
        expect([error.code, error.reason]).toEqual(['conflict', 'volume-not-empty']);
        await reclaim();
        store = await reopen();
        await sweep();
        expect(await store.get(made.name, scope)).toEqual({ volume: made, condition: 'ok' });
        expect(await under.readMark(made)).toBe('precious');
        expect(await orphans()).toEqual([]);
        expect(await trashList()).toEqual([]);
        await twice(() => store.delete(made, scope));
        expect(await list()).toEqual([]);
      });

      test('completes a deletion that was interrupted after it removed the data', async () => {
        const made = await create('a');
        await under.lose(made);
        await twice(() => deleteIfEmpty(made));
        expect(await list()).toEqual([]);
      });

      test('leaves another volume of that name alone', async () => {
        const made = await create('a');
        await twice(() => deleteIfEmpty({ id: newVolumeId(), name: made.name }));
        expect(await list()).toEqual([made]);
      });

      test('either deletes a volume or lets it be used, never both', async () => {
        for (const called of ['a', 'b', 'c', 'd']) {
          const made = await create(called);
          const use = async (): Promise<void> => {
            await store.markUsed?.(made, scope);
            await under.mark(made, 'precious');
          };
          const [deleted, used] = await Promise.allSettled([deleteIfEmpty(made), use()]);
          if (deleted.status === 'fulfilled') expect(used.status).toBe('rejected');
          else expect(await under.readMark(made)).toBe('precious');
        }
      });
    });

    if (isDue('rename'))
      describe('rename', () => {
        test('moves record and data, and keeps the id', async () => {
          const made = await create('a');
          await under.mark(made, 'mine');
          const moved = await twice(() => store.rename(made, name('b'), scope));
          expect(moved).toEqual({ ...made, name: 'b', revision: moved.revision });
          expect(moved.revision).toBeGreaterThan(made.revision);
          expect(await list()).toEqual([moved]);
          expect(await store.get(made.name, scope)).toBeUndefined();
          expect(await store.get(moved.name, scope)).toEqual({ volume: moved, condition: 'ok' });
          expect(await under.readMark(moved)).toBe('mine');
          expect(await orphans()).toEqual([]);
        });

        test('to its own name changes nothing', async () => {
          const made = await create('a');
          expect(await twice(() => store.rename(made, made.name, scope))).toEqual(made);
        });

        test('can be reversed', async () => {
          const made = await create('a');
          const there = await store.rename(made, name('b'), scope);
          const back = await twice(() => store.rename(there, name('a'), scope));
          expect(back.name).toBe('a');
          expect(await list()).toEqual([back]);
        });

        test('refuses a name that a volume or data without a record have', async () => {
          const [a, b] = [await create('a'), await create('b')];
          await under.plant('c');
          expect((await refused(() => store.rename(a, b.name, scope))).reason).toBe('volume-exists');
          expect((await refused(() => store.rename(a, name('c'), scope))).reason).toBe('directory-unrecorded');
          expect(await list()).toEqual([a, b]);
        });

        test('fails with not-found when neither name has the volume', async () => {
          const error = await refused(() => store.rename({ id: newVolumeId(), name: name('a') }, name('b'), scope));
          expect(error.code).toBe('not-found');
        });
      });

    describe('the enforcement of sizes, where the store supports it', () => {
      test('is stored with the volume, and survives changes, the trash, a release and a restart', async () => {
        const { always = false, enforce } = store.enforcement ?? {};
        // A store that cannot enforce sizes must not report that it does. Core then refuses a volume with enforcement.
        if (enforce === undefined) return expect(always).toBe(false);
        const made = await create('a');
        const enforced = await twice(() => enforce(made, scope));
        expect(enforced).toEqual({ ...made, enforce: true, revision: enforced.revision });
        expect(enforced.revision).toBeGreaterThan(made.revision);
        const larger = await store.expand(made, size * 2n, scope);
        expect(larger).toMatchObject({ enforce: true, bytes: size * 2n });
        await store.trash.put(made, keptForAWeek(1), scope);
        expect((await store.trash.restore(made.id, made.name, scope)).enforce).toBe(true);
        await store.adoption.release(made, scope);
        expect((await store.adoption.adopt(made.name, spec('b'), scope)).enforce).toBe(true);
        await under.reopen();
        expect((await under.store.get(made.name, scope))?.volume.enforce).toBe(true);
      });

      test('is part of the request', async () => {
        const { always = false, enforce } = store.enforcement ?? {};
        if (enforce === undefined) return expect(always).toBe(false);
        const want = spec('a', { enforce: true });
        expect((await twice(() => store.create(want, scope))).enforce).toBe(true);
        expect((await refused(() => store.create(spec('a'), scope))).reason).toBe('request-differs');
      });
    });

    describe('label, claim and expand', () => {
      test('change only the requested fields, and the revision', async () => {
        const made = await create('a');
        const labelled = await twice(() => store.label(made, { tier: 'gold' }, scope));
        expect(labelled).toEqual({ ...made, labels: { tier: 'gold' }, revision: 2 });
        if (!isDue('adoption', 'expand')) return;
        const claimed = await twice(() => store.adoption.claim(made, 'another', scope));
        expect(claimed).toEqual({ ...labelled, instance: 'another', revision: 3 });
        const grown = await twice(() => store.expand(made, size * 2n, scope));
        expect(grown).toEqual({ ...claimed, bytes: size * 2n, revision: 4 });
        expect((await store.get(made.name, scope))?.volume).toEqual(grown);
      });

      if (isDue('expand'))
        test('expanding to the present size changes nothing, and nothing ever shrinks', async () => {
          const made = await create('a');
          expect(await twice(() => store.expand(made, size, scope))).toEqual(made);
          const error = await refused(() => store.expand(made, size - 1n, scope));
          expect([error.code, error.reason]).toEqual(['out-of-range', 'volume-would-shrink']);
          expect(await list()).toEqual([made]);
        });

      test('fail with not-found for a volume that does not exist or was replaced by another one of that name', async () => {
        await create('b');
        for (const ref of [
          { id: newVolumeId(), name: name('a') },
          { id: newVolumeId(), name: name('b') },
        ]) {
          expect((await refused(() => store.label(ref, {}, scope))).code).toBe('not-found');
          if (isDue('adoption'))
            expect((await refused(() => store.adoption.claim(ref, 'x', scope))).code).toBe('not-found');
          if (isDue('expand')) expect((await refused(() => store.expand(ref, size, scope))).code).toBe('not-found');
          expect((await refused(() => store.source(ref, scope))).code).toBe('not-found');
          if (isDue('usage')) expect((await refused(() => store.usage(ref, scope))).code).toBe('not-found');
        }
      });
    });

    describe('source and usage', () => {
      test('return the location of the data and how much space they use', async () => {
        const made = await create('a');
        await under.mark(made, 'x'.repeat(100_000));
        expect((await twice(() => store.source(made, scope))).kind).toBeTruthy();
        expect(store.sources).toContain((await store.source(made, scope)).kind);
        if (!isDue('usage')) return;
        const usage = await store.usage(made, scope);
        expect(usage.complete).toBe(true);
        expect(usage.bytes).toBeGreaterThanOrEqual(100_000n);
        expect(usage.bytes).toBeLessThan(2n * size);
      });

      if (isDue('usage'))
        test('report a volume as empty only when that is certain', async () => {
          const made = await create('a');
          expect((await store.usage(made, scope)).empty).toBe(true);
          await twice(async () => store.markUsed?.(made, scope));
          await under.mark(made, 'x');
          expect((await store.usage(made, scope)).empty).toBe(false);
          expect((await store.get(name('a'), scope))?.volume).toEqual(made);
        });

      test('report that users can write to a new volume', async () => {
        const source = await store.source(await create('a'), scope);
        await twice(async () => store.checkWritable?.(source, scope));
      });

      test('fail for a volume whose data are missing', async () => {
        const made = await create('a');
        await under.lose(made);
        expect((await refused(() => store.source(made, scope))).reason).toBe('volume-data-unusable');
        if (isDue('usage')) expect((await refused(() => store.usage(made, scope))).reason).toBe('volume-data-unusable');
      });
    });

    if (isDue('trash'))
      describe('the trash', () => {
        test('hides a volume and restores it unchanged', async () => {
          const made = await create('a');
          await under.mark(made, 'mine');
          const expiresAt = await twice(() => store.trash.put(made, keptForAWeek(1234), scope));
          expect(expiresAt).toBeGreaterThan(7 * 86_400_000);
          expect(await list()).toEqual([]);
          expect(await store.get(made.name, scope)).toBeUndefined();
          expect(await twice(() => store.trash.list(scope))).toEqual([{ volume: made, deletedAt: 1234, expiresAt }]);
          store = await reopen();
          await sweep();
          await reclaim();
          const back = await twice(() => store.trash.restore(made.id, made.name, scope));
          expect(back).toEqual({ ...made, revision: back.revision });
          expect(await under.readMark(back)).toBe('mine');
          expect(await list()).toEqual([back]);
          expect(await trashed()).toEqual([]);
        });

        test('expires nothing before its retention has passed', async () => {
          const made = await create('a');
          await store.trash.put(made, keptForAWeek(1), scope);
          expect(await twice(() => store.trash.listExpired(1, scope))).toEqual([]);
          expect(await twice(() => store.trash.purgeExpired(made.id, scope))).toBe(false);
          expect(await trashed()).toEqual([made.id]);
        });

        test('purges at once on request, except a volume that was restored and deleted again since', async () => {
          const made = await create('a');
          await store.trash.put(made, keptForAWeek(1), scope);
          const back = await store.trash.restore(made.id, made.name, scope);
          await store.trash.put(back, keptForAWeek(2), scope);
          await twice(() => store.trash.purge(made.id, scope, { deletedAt: 1 }));
          expect(await trashed()).toEqual([made.id]);
          await twice(() => store.trash.purge(made.id, scope, { deletedAt: 2 }));
          expect(await trashed()).toEqual([]);
        });

        test('restores under another name while the old one is taken', async () => {
          const first = await create('a');
          await store.trash.put(first, keptForAWeek(1), scope);
          const second = await store.create(spec('a', { requestId: 'another' }), scope);
          expect((await refused(() => store.trash.restore(first.id, first.name, scope))).code).toBe('exists');
          const back = await twice(() => store.trash.restore(first.id, name('b'), scope));
          expect(back).toMatchObject({ id: first.id, name: 'b' });
          expect(await list()).toEqual([second, back]);
        });

        test('keeps two volumes of the same name apart', async () => {
          const first = await create('a');
          await store.trash.put(first, keptForAWeek(1), scope);
          const second = await store.create(spec('a', { requestId: 'another' }), scope);
          await store.trash.put(second, keptForAWeek(2), scope);
          expect((await trashed()).sort()).toEqual([first.id, second.id].sort());
        });

        test('forgets purged volumes for good', async () => {
          const before = await under.count();
          const made = await create('a');
          await under.mark(made, 'mine');
          await store.trash.put(made, keptForAWeek(1), scope);
          await twice(() => store.trash.purge(made.id, scope));
          await reclaim();
          expect(await trashed()).toEqual([]);
          expect(await under.count()).toBe(before);
          expect((await refused(() => store.trash.restore(made.id, made.name, scope))).code).toBe('not-found');
        });

        test('ignores volumes that do not exist', async () => {
          const nobody = { id: newVolumeId(), name: name('a') };
          await twice(() => store.trash.put(nobody, keptForAWeek(1), scope));
          await twice(() => store.trash.purge(nobody.id, scope));
          expect(await trashed()).toEqual([]);
        });
      });

    if (isDue('adoption'))
      describe('release and adopt', () => {
        test('a released volume is adopted under its old id, with its data', async () => {
          const made = await create('a');
          await under.mark(made, 'mine');
          await twice(() => store.adoption.release(made, scope));
          expect(await list()).toEqual([]);
          expect(await store.adoption.adoptable(scope)).toEqual([{ name: 'a' }]);
          store = await reopen();
          await sweep();
          const back = await twice(() => store.adoption.adopt(made.name, spec('a', { requestId: 'adopt' }), scope));
          expect(back).toEqual({ ...made, requestId: 'adopt', revision: back.revision });
          expect(await under.readMark(back)).toBe('mine');
          expect(await store.adoption.adoptable(scope)).toEqual([]);
        });

        test('data without a record are adopted as a volume', async () => {
          await under.plant('a');
          const want = spec('a', { bytes: undefined });
          const made = await twice(() => store.adoption.adopt(name('a'), want, scope));
          expect(made).toMatchObject({ id: want.id, name: 'a', labels: want.labels, revision: 1 });
          expect(await store.get(name('a'), scope)).toEqual({ volume: made, condition: 'ok' });
          expect(await orphans()).toEqual([]);
        });

        test('data that do not exist cannot be adopted, and a volume cannot be adopted twice', async () => {
          expect((await refused(() => store.adoption.adopt(name('a'), spec('a'), scope))).code).toBe('not-found');
          await create('b');
          expect(
            (await refused(() => store.adoption.adopt(name('b'), spec('b', { requestId: 'x' }), scope))).code,
          ).toBe('exists');
        });
      });

    describe('orphans, sweep and check', () => {
      if (isDue('housekeeping', 'adoption'))
        test('data without a record and volumes of other instances are reported and left alone', async () => {
          const made = await create('a');
          await store.adoption.claim(made, 'another', scope);
          await under.plant('b');
          store = await reopen();
          await twice(sweep);
          const found = await twice(orphans);
          expect(found.map(({ kind, name }) => [kind, name])).toEqual([
            ...(store.changedByOthers === undefined ? [['unknown-volume', 'a']] : []),
            ['unrecorded-directory', 'b'],
          ]);
          for (const orphan of found) expect(orphan.action).not.toBe('');
        });

      test('a sweep leaves complete volumes unchanged', async () => {
        const made = await create('a');
        await under.mark(made, 'mine');
        await twice(sweep);
        await twice(reclaim);
        expect(await list()).toEqual([made]);
        expect(await under.readMark(made)).toBe('mine');
      });

      test('a healthy store passes its check and reports its free space', async () => {
        const check = await store.check(scope);
        expect(check.steps.filter(({ ok }) => !ok)).toEqual([]);
        expect(check.ok).toBe(true);
        expect(check.totalBytes).toBeGreaterThan(0n);
        if (!isDue('room')) return;
        const { totalBytes, freeBytes } = await store.room(scope);
        expect(totalBytes).toBe(check.totalBytes);
        expect(freeBytes).toBeGreaterThan(0n);
        expect(freeBytes).toBeLessThanOrEqual(totalBytes);
      });
    });

    describe('a read-only store', () => {
      test('lists recorded volumes under their ids, and other data under stable ids', async () => {
        const made = await create('a');
        await under.mark(made, 'mine');
        if (isDue('adoption')) await under.plant('b');
        const before = await under.count();
        store = await reopenReadOnly();
        const seen = await twice(list);
        expect(seen.map((volume) => volume.name)).toEqual(isDue('adoption') ? ['a', 'b'] : ['a']);
        expect(seen[0]).toEqual(made);
        for (const volume of seen) {
          expect(await twice(() => store.get(volume.name, scope))).toEqual({ volume, condition: 'ok' });
          expect((await store.source(volume, scope)).kind).toBeTruthy();
          if (isDue('usage')) expect((await store.usage(volume, scope)).complete).toBe(true);
        }
        expect((await store.check(scope)).ok).toBe(true);
        store = await reopenReadOnly();
        expect(await list()).toEqual(seen);
        expect(await under.count()).toBe(before);
      });

      test('refuses every change', async () => {
        const made = await create('a');
        store = await reopenReadOnly();
        const changes: (() => Promise<unknown>)[] = [
          () => store.create(spec('b'), scope),
          () => store.delete(made, scope),
          () => store.label(made, {}, scope),
        ];
        if (isDue('rename')) changes.push(() => store.rename(made, name('b'), scope));
        if (isDue('expand')) changes.push(() => store.expand(made, size * 2n, scope));
        if (isDue('adoption'))
          changes.push(
            () => store.adoption.release(made, scope),
            () => store.adoption.claim(made, 'x', scope),
            () => store.adoption.adopt(name('b'), spec('b'), scope),
          );
        if (isDue('trash'))
          changes.push(
            () => store.trash.put(made, keptForAWeek(1), scope),
            () => store.trash.restore(made.id, made.name, scope),
            () => store.trash.purge(made.id, scope),
          );
        for (const change of changes) {
          const error = await refused(change);
          expect([error.code, error.reason]).toEqual(['denied', 'store-read-only']);
        }
        await sweep();
        await reclaim();
        expect(await list()).toEqual([made]);
      });
    });
  });
}
