import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Labels, StoreName, Volume, VolumeId, VolumeName } from '#core/model.ts';
import type { Records, VolumeQuery } from '#core/ports.ts';
import { openRecords } from './sqlite.ts';

const gold = 'gold' as StoreName;
const silver = 'silver' as StoreName;

const volume = (n: number, more: Partial<Omit<Volume, 'id'>> = {}): Volume => ({
  id: `sv1-${n}` as VolumeId,
  name: `v${String(n).padStart(5, '0')}` as VolumeName,
  store: gold,
  bytes: 1024n,
  enforce: false,
  access: 'filesystem',
  labels: {},
  requestId: `request-${n}`,
  createdAt: 1000 + n,
  revision: 1,
  instance: 'here',
  ...more,
});

const everything: VolumeQuery = {
  stores: [gold, silver],
  labels: {},
  contains: undefined,
  after: undefined,
  limit: 1000,
};

let folder: string;
let records: Records;

const openEmpty = (): void => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-records-'));
  records = openRecords(join(folder, 'state.db'));
};
const finish = (): void => {
  records.close();
  rmSync(folder, { recursive: true });
};
const findIds = (query: Partial<VolumeQuery>): string[] =>
  records.volumes.page({ ...everything, ...query }).map(({ id }) => id);

describe('volumes', () => {
  beforeEach(openEmpty);
  afterEach(finish);

  test('are found unchanged by id, by name, and by bare name in all stores', () => {
    const one = volume(1, { labels: { tier: 'a' }, access: 'block' });
    const twin = volume(2, { name: one.name, store: silver, bytes: undefined });
    for (const record of [one, twin, one]) records.volumes.put(record);
    expect(records.volumes.byId(one.id)).toEqual(one);
    expect(records.volumes.byName(silver, one.name)).toEqual(twin);
    expect(records.volumes.allByName(one.name)).toEqual([one, twin]);
    expect(records.volumes.names(gold)).toEqual([{ id: one.id, name: one.name }]);
    expect(records.volumes.byId('sv1-none' as VolumeId)).toBeUndefined();
    expect(records.volumes.byName(gold, 'none' as VolumeName)).toBeUndefined();
  });

  test('can be removed twice', () => {
    records.volumes.put(volume(1, { labels: { a: '1' } }));
    records.volumes.remove(volume(1).id);
    records.volumes.remove(volume(1).id);
    expect(records.volumes.byId(volume(1).id)).toBeUndefined();
    expect(findIds({ labels: { a: '1' } })).toEqual([]);
    expect(records.volumes.totals(gold)).toEqual({ volumes: 0, bytes: 0n });
  });

  test.each([0n, 1n, 2n ** 53n - 1n, 2n ** 53n + 1n, 2n ** 63n - 1n])(
    'keep every digit of a size of %d bytes',
    (bytes) => {
      records.volumes.put(volume(1, { bytes }));
      expect(records.volumes.byId(volume(1).id)?.bytes).toBe(bytes);
      expect(records.volumes.totals(gold).bytes).toBe(bytes);
    },
  );

  test.each([true, false])('keep whether a size is enforced: %s', (enforce) => {
    records.volumes.put(volume(1, { enforce: !enforce }));
    records.volumes.put(volume(1, { enforce }));
    expect(records.volumes.byId(volume(1).id)?.enforce).toBe(enforce);
  });

  test.each([-1n, 2n ** 63n])('are rejected with a size of %d bytes, which leaves nothing behind', (bytes) => {
    expect(() => records.volumes.put(volume(1, { bytes }))).toThrow(
      expect.objectContaining({
        message: `the size of volume gold/v00001, ${bytes} bytes, cannot be recorded`,
        code: 'out-of-range',
      }),
    );
    expect(findIds({})).toEqual([]);
  });

  test('lose their old name and labels at a put with new ones', () => {
    records.volumes.put(volume(1, { labels: { tier: 'a', team: 'x' } }));
    const renamed = volume(1, { name: 'other' as VolumeName, labels: { tier: 'b' }, revision: 2 });
    records.volumes.put(renamed);
    expect(records.volumes.byName(gold, volume(1).name)).toBeUndefined();
    expect(findIds({ labels: { tier: 'a' } })).toEqual([]);
    expect(findIds({ labels: { team: 'x' } })).toEqual([]);
    expect(records.volumes.page({ ...everything, labels: { tier: 'b' } })).toEqual([renamed]);
    expect(records.volumes.totals(gold)).toEqual({ volumes: 1, bytes: 1024n });
  });

  test('replace the record of another volume with the same name', () => {
    records.volumes.put(volume(1, { labels: { tier: 'a' } }));
    records.volumes.put(volume(2, { name: volume(1).name }));
    expect(records.volumes.byId(volume(1).id)).toBeUndefined();
    expect(records.volumes.byName(gold, volume(1).name)?.id).toBe(volume(2).id);
    expect(findIds({ labels: { tier: 'a' } })).toEqual([]);
    expect(records.volumes.totals(gold)).toEqual({ volumes: 1, bytes: 1024n });
  });

  test('are removed with labels and totals when their store is forgotten, and other stores are not affected', () => {
    records.volumes.put(volume(1, { labels: { a: '1' } }));
    records.volumes.put(volume(2, { store: silver, labels: { a: '1' } }));
    records.volumes.forgetStore(gold);
    records.volumes.forgetStore(gold);
    expect(findIds({ labels: { a: '1' } })).toEqual([volume(2).id]);
    expect(records.volumes.totals(gold)).toEqual({ volumes: 0, bytes: 0n });
    expect(records.volumes.totals(silver)).toEqual({ volumes: 1, bytes: 1024n });
    records.volumes.put(volume(1, { labels: { a: '1' } }));
    expect(records.volumes.totals(gold)).toEqual({ volumes: 1, bytes: 1024n });
  });

  test('have totals that can exceed 64 bits, and return to smaller values', () => {
    const maxSize = 2n ** 63n - 1n;
    for (let n = 1; n <= 3; n++) records.volumes.put(volume(n, { bytes: maxSize }));
    expect(records.volumes.totals(gold)).toEqual({ volumes: 3, bytes: 3n * maxSize });
    for (let n = 1; n <= 2; n++) records.volumes.remove(volume(n).id);
    expect(records.volumes.totals(gold)).toEqual({ volumes: 1, bytes: maxSize });
  });

  test('have lookups by id and totals that match the list after any changes, committed or rolled back', () => {
    /**
     * Looks up every volume, because the records cache lookups. The test calls this between all changes, and before a
     * rollback.
     */
    const agree = (): void => {
      const listed = new Map(records.volumes.page(everything).map((each) => [each.id, each]));
      for (let n = 1; n <= 6; n++) expect(records.volumes.byId(volume(n).id)).toEqual(listed.get(volume(n).id));
    };
    const change = fc.record({
      n: fc.integer({ min: 1, max: 6 }),
      what: fc.constantFrom('put', 'put', 'put', 'remove', 'forget'),
      store: fc.constantFrom(gold, silver),
      name: fc.constantFrom('a', 'b', 'c', 'd'),
      bytes: fc.option(fc.bigInt({ min: 0n, max: 2n ** 63n - 1n }), { nil: undefined }),
      rollback: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(change, { maxLength: 30 }), (changes) => {
        for (const store of [gold, silver]) records.volumes.forgetStore(store);
        for (const { n, what, store, name, bytes, rollback } of changes) {
          const work = (): void => {
            if (what === 'put') records.volumes.put(volume(n, { store, name: name as VolumeName, bytes }));
            else if (what === 'remove') records.volumes.remove(volume(n).id);
            else records.volumes.forgetStore(store);
            agree();
            if (rollback) throw new Error('back');
          };
          if (rollback) expect(() => records.transaction(work)).toThrow('back');
          else records.transaction(work);
          agree();
        }
        for (const store of [gold, silver]) {
          const counted = records.volumes.page({ ...everything, stores: [store] });
          const bytes = counted.reduce((sum, each) => sum + (each.bytes ?? 0n), 0n);
          expect(records.volumes.totals(store)).toEqual({ volumes: counted.length, bytes });
        }
      }),
      { numRuns: 200 },
    );
  });

  test('are found by labels of any text, and only by the same text', () => {
    const hostile = [
      "'",
      '"',
      '\\',
      '',
      '\0',
      'a\0b',
      'a',
      '\ud800',
      '\udfff',
      '\ufffd',
      '","',
      'ü',
      'u\u0308',
      '🧳',
      '%',
      '*',
    ];
    for (const [n, value] of hostile.entries()) records.volumes.put(volume(n, { labels: { 'k"\0\'': value } }));
    for (const [n, value] of hostile.entries()) {
      const labels = { 'k"\0\'': value };
      expect(records.volumes.page({ ...everything, labels })).toEqual([volume(n, { labels })]);
    }
    expect(findIds({ labels: { k: 'a' } })).toEqual([]);
  });

  test('return any set of labels unchanged, and are found by it', () => {
    const text = fc.string({ unit: 'binary', maxLength: 12 });
    fc.assert(
      fc.property(fc.dictionary(text, text, { maxKeys: 6, noNullPrototype: true }), (labels: Labels) => {
        const one = volume(1, { labels });
        records.volumes.put(one);
        expect(records.volumes.byId(one.id)).toEqual(one);
        expect(findIds({ labels })).toEqual([one.id]);
      }),
    );
  });

  test('are found by several labels only if they have all of them', () => {
    records.volumes.put(volume(1, { labels: { tier: 'a', team: 'x', zone: '1' } }));
    records.volumes.put(volume(2, { labels: { tier: 'a', team: 'y', zone: '1' } }));
    records.volumes.put(volume(3, { labels: { tier: 'a' } }));
    expect(findIds({ labels: { tier: 'a' } })).toEqual(['sv1-1', 'sv1-2', 'sv1-3']);
    expect(findIds({ labels: { zone: '1', tier: 'a' } })).toEqual(['sv1-1', 'sv1-2']);
    expect(findIds({ labels: { zone: '1', tier: 'a', team: 'y' } })).toEqual(['sv1-2']);
    expect(findIds({ labels: { zone: '1', tier: 'b' } })).toEqual([]);
  });

  test('are found by at most 32 labels', () => {
    const labels = (count: number): Labels =>
      Object.fromEntries(Array.from({ length: count }, (_, n) => [`k${n}`, 'v']));
    records.volumes.put(volume(1, { labels: labels(33) }));
    expect(findIds({ labels: labels(32) })).toEqual(['sv1-1']);
    expect(() => findIds({ labels: labels(33) })).toThrow(
      expect.objectContaining({ message: 'volumes cannot be filtered by 33 labels at once', code: 'out-of-range' }),
    );
  });

  test.each([0, -1, 1.5, 10_001, Number.NaN])('are not listed with a page size of %d', (limit) => {
    expect(() => records.volumes.page({ ...everything, limit })).toThrow(
      expect.objectContaining({ message: `a page cannot hold ${limit} volumes`, code: 'out-of-range' }),
    );
  });
});

describe('20,000 volumes', () => {
  const count = 20_000;
  beforeAll(() => {
    openEmpty();
    records.transaction(() => {
      // In an order that differs from the order of the queries.
      for (let i = 0; i < count; i++) {
        const n = (i * 7919) % count;
        const labels: Labels = n % 3 === 0 ? { third: 'yes', odd: String(n % 2) } : {};
        records.volumes.put(volume(n, { store: n % 2 === 0 ? gold : silver, labels }));
      }
    });
  });
  afterAll(finish);

  function walk(query: Partial<VolumeQuery>): number[] {
    const pageSizes: number[] = [];
    let after: VolumeQuery['after'];
    for (;;) {
      const page = records.volumes.page({ ...everything, limit: 700, ...query, after });
      const last = page.at(-1);
      if (last === undefined) return pageSizes;
      after = { store: last.store, name: last.name };
      pageSizes.push(...page.map(({ id }) => Number(id.slice(4))));
    }
  }

  const numbers = Array.from({ length: count }, (_, n) => n);
  const even = numbers.filter((n) => n % 2 === 0);
  const odd = numbers.filter((n) => n % 2 === 1);

  test('are listed in pages by store and name, each volume once', () => {
    expect(walk({})).toEqual([...even, ...odd]);
    expect(walk({ stores: [silver] })).toEqual(odd);
    expect(walk({ stores: [silver, gold, silver] })).toEqual([...even, ...odd]);
    expect(walk({ stores: ['none' as StoreName] })).toEqual([]);
    expect(walk({ stores: [] })).toEqual([]);
  });

  test('are listed in pages by labels', () => {
    const isThird = (n: number): boolean => n % 3 === 0;
    expect(walk({ labels: { third: 'yes' } })).toEqual([...even.filter(isThird), ...odd.filter(isThird)]);
    expect(walk({ labels: { third: 'yes', odd: '1' } })).toEqual(odd.filter(isThird));
    expect(walk({ labels: { third: 'yes' }, stores: [gold], limit: 1000 })).toEqual(even.filter(isThird));
  });

  test('are listed in pages by a part of the name, which is not a pattern', () => {
    expect(walk({ contains: '0123' })).toEqual(
      [...even, ...odd].filter((n) => `v${String(n).padStart(5, '0')}`.includes('0123')),
    );
    expect(walk({ contains: '%' })).toEqual([]);
    expect(walk({ contains: '0003', labels: { third: 'yes' } })).toEqual([30, 36, 3, 33, 39]);
  });

  test('are included in the names and totals of their own store only', () => {
    expect(records.volumes.names(gold).map(({ id }) => Number(id.slice(4)))).toEqual(even);
    expect(records.volumes.totals(gold)).toEqual({ volumes: 10_000, bytes: 10_240_000n });
  });
});
