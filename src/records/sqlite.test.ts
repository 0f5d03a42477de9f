import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { NodeName, Operation, OperationId, StoreName, Token, VolumeId } from '#core/model.ts';
import type { Records } from '#core/ports.ts';
import { openRecords } from './sqlite.ts';

let folder: string;
let records: Records;

const reopen = (): void => {
  records.close();
  records = openRecords(join(folder, 'state.db'));
};

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-records-'));
  records = openRecords(join(folder, 'state.db'));
});
afterEach(() => {
  records.close();
  rmSync(folder, { recursive: true });
});

const unusualTexts = ['', "'; DROP TABLE settings; --", 'a\0b', '"\\\n\t', 'ünïcödé 🧳', '\u202e', '%_*?['];

describe('settings', () => {
  test('keep their last values over a restart', () => {
    expect(records.settings.get('instance')).toBeUndefined();
    records.settings.set('instance', 'one');
    records.settings.set('instance', 'one');
    records.settings.set('instance', 'two');
    reopen();
    expect(records.settings.get('instance')).toBe('two');
  });

  test.each(unusualTexts)('keep keys and values unchanged, whatever they contain: %j', (hostile) => {
    records.settings.set(hostile, hostile);
    expect(records.settings.get(hostile)).toBe(hostile);
  });
});

describe('stores', () => {
  const name = (text: string): StoreName => text as StoreName;

  test('are listed by name; a second put changes the URI, a second removal does nothing', () => {
    records.stores.put(name('silver'), 'local:///srv/silver');
    records.stores.put(name('gold'), 'local:///srv/gold');
    records.stores.put(name('gold'), 'local:///srv/gold?layout=image');
    expect(records.stores.list()).toEqual([
      { name: 'gold', uri: 'local:///srv/gold?layout=image' },
      { name: 'silver', uri: 'local:///srv/silver' },
    ]);
    records.stores.remove(name('gold'));
    records.stores.remove(name('gold'));
    reopen();
    expect(records.stores.list()).toEqual([{ name: 'silver', uri: 'local:///srv/silver' }]);
  });
});

describe('operations', () => {
  const operation = (n: number): Operation => ({
    id: `op1-${n}` as OperationId,
    kind: 'volume.create',
    store: n % 2 === 0 ? 'gold' : undefined,
    subject: `volume-${n}`,
    params: { name: `volume-${n}`, nested: { list: [1, 'two', null] }, hostile: unusualTexts },
    state: 'running',
    startedAt: 1000 + n,
    endedAt: undefined,
    error: undefined,
  });
  const failure = { code: 'exhausted', reason: 'disk-full', message: 'no room', action: 'Free some space.' };

  test('are unfinished, with everything that a replay needs, until they end', () => {
    records.operations.begin(operation(1));
    records.operations.begin(operation(2));
    records.operations.begin(operation(2));
    reopen();
    expect(records.operations.listUnfinished()).toEqual([operation(1), operation(2)]);
    expect(records.operations.get(operation(2).id)).toEqual(operation(2));
    records.operations.end(operation(1).id, 'failed', 5000, failure);
    expect(records.operations.listUnfinished()).toEqual([operation(2)]);
    expect(records.operations.get(operation(1).id)).toEqual({
      ...operation(1),
      state: 'failed',
      endedAt: 5000,
      error: failure,
    });
  });

  test('keep their first end, and cannot end without a begin', () => {
    records.operations.begin(operation(1));
    records.operations.end(operation(1).id, 'done', 5000, undefined);
    records.operations.end(operation(1).id, 'failed', 6000, failure);
    expect(records.operations.get(operation(1).id)).toEqual({ ...operation(1), state: 'done', endedAt: 5000 });
    records.operations.end('op1-unknown' as OperationId, 'done', 1, undefined);
    expect(records.operations.get('op1-unknown' as OperationId)).toBeUndefined();
  });

  test('run again if they are begun again after their end', () => {
    records.operations.begin(operation(1));
    records.operations.end(operation(1).id, 'failed', 5000, failure);
    records.operations.begin(operation(1));
    expect(records.operations.listUnfinished()).toEqual([operation(1)]);
  });

  test('are listed newest first, up to the limit', () => {
    for (let n = 1; n <= 5; n++) records.operations.begin(operation(n));
    expect(records.operations.page({ limit: 3 }).items.map(({ id }) => id)).toEqual(['op1-5', 'op1-4', 'op1-3']);
    expect(records.operations.page({ limit: 100 }).items).toHaveLength(5);
    expect(records.operations.page({ limit: 0 }).items).toEqual([]);
  });

  test.each<[stores: string[] | undefined, ids: string[]]>([
    [undefined, ['op1-7', 'op1-6', 'op1-5', 'op1-4', 'op1-3', 'op1-2', 'op1-1']],
    [
      ['gold', 'unknown'],
      ['op1-6', 'op1-4', 'op1-2'],
    ],
    [['silver'], []],
    [[], []],
  ])('pages of the stores %j follow each other even if the last operation of a page was removed', (stores, ids) => {
    for (let n = 1; n <= 7; n++) records.operations.begin(operation(n));
    const listedIds: string[] = [];
    for (let after: number | undefined, more = true; more; ) {
      const { items, next } = records.operations.page({ stores, after, limit: 2 });
      listedIds.push(...items.map(({ id }) => id));
      for (const { id } of items) records.operations.end(id, 'done', 5000, undefined);
      records.operations.prune(0);
      after = next;
      more = next !== undefined;
    }
    expect(listedIds).toEqual(ids);
  });

  test('have no next page after a full last page', () => {
    for (let n = 1; n <= 4; n++) records.operations.begin(operation(n));
    const { next } = records.operations.page({ limit: 2 });
    expect(records.operations.page({ after: next, limit: 2 })).toMatchObject({ items: [{}, {}], next: undefined });
  });

  test('are pruned, except the most recently ended and all running ones', () => {
    for (let n = 1; n <= 10; n++) records.operations.begin(operation(n));
    for (let n = 2; n <= 9; n++) records.operations.end(operation(n).id, 'done', 5000, undefined);
    // This operation began first and ended last.
    records.operations.end(operation(1).id, 'done', 9000, undefined);
    const ids = (): string[] => records.operations.page({ limit: 100 }).items.map(({ id }) => id);
    records.operations.prune(3);
    records.operations.prune(3);
    expect(ids()).toEqual(['op1-10', 'op1-9', 'op1-8', 'op1-1']);
    records.operations.prune(0);
    expect(ids()).toEqual(['op1-10']);
  });
});

describe('mounts', () => {
  const mount = (target: string, volume: string, readOnly: boolean) => ({
    volumeId: volume as VolumeId,
    source: { kind: 'loop' as const, node: 'node-1' as NodeName, path: `/srv/${volume}'`, filesystem: 'xfs' as const },
    target,
    readOnly,
    user: { kind: 'container' as const, name: 'web', node: 'node-1' as NodeName },
    since: 1234,
    madeTarget: !readOnly,
  });

  test('are found by target and by volume; the last put of a target counts', () => {
    records.mounts.put(mount('/b', 'sv1-b', true));
    records.mounts.put(mount('/a', 'sv1-a', true));
    records.mounts.put(mount('/a', 'sv1-b', false));
    records.mounts.put(mount('/a', 'sv1-b', false));
    reopen();
    expect(records.mounts.byTarget('/a')).toEqual(mount('/a', 'sv1-b', false));
    expect(records.mounts.byVolume('sv1-a' as VolumeId)).toEqual([]);
    const both = [mount('/a', 'sv1-b', false), mount('/b', 'sv1-b', true)];
    expect(records.mounts.byVolume('sv1-b' as VolumeId)).toEqual(both);
    expect(records.mounts.list()).toEqual(both);
    records.mounts.remove('/a');
    records.mounts.remove('/a');
    expect(records.mounts.byTarget('/a')).toBeUndefined();
    expect(records.mounts.list()).toEqual([mount('/b', 'sv1-b', true)]);
  });
});

describe('tokens', () => {
  const token = (id: string, more: Partial<Token> = {}): Token => ({
    id,
    name: `${id}'s`,
    role: 'user',
    stores: ['gold', 'silver'],
    createdAt: 10,
    expiresAt: undefined,
    ...more,
  });

  test('are found by their hashes only, until they are removed', () => {
    records.tokens.put(token('t2', { createdAt: 5, expiresAt: 99 }), 'hash-2');
    records.tokens.put(token('t1', { stores: [] }), 'hash-1');
    records.tokens.put(token('t1', { stores: [] }), 'hash-1');
    reopen();
    expect(records.tokens.byHash('hash-1')).toEqual(token('t1', { stores: [] }));
    expect(records.tokens.byHash('t1')).toBeUndefined();
    expect(records.tokens.list()).toEqual([token('t2', { createdAt: 5, expiresAt: 99 }), token('t1', { stores: [] })]);
    expect(records.tokens.remove('t1')).toBe(true);
    expect(records.tokens.remove('t1')).toBe(false);
    expect(records.tokens.byHash('hash-1')).toBeUndefined();
  });

  test('keep only the last hash', () => {
    records.tokens.put(token('t1'), 'old');
    records.tokens.put(token('t1'), 'new');
    expect(records.tokens.byHash('old')).toBeUndefined();
    expect(records.tokens.byHash('new')).toEqual(token('t1'));
  });
});

describe('idempotent responses', () => {
  test('have no status while the request is running, and are pruned when they are old', () => {
    records.idempotentResponses.put('key', { fingerprint: 'f', status: undefined, body: '', at: 100 });
    expect(records.idempotentResponses.get('key')).toEqual({ fingerprint: 'f', status: undefined, body: '', at: 100 });
    const answer = { fingerprint: 'f', status: 201, body: '{"id":"sv1"}', at: 200 };
    records.idempotentResponses.put('key', answer);
    records.idempotentResponses.put('key', answer);
    reopen();
    expect(records.idempotentResponses.get('key')).toEqual(answer);
    records.idempotentResponses.prune(200);
    expect(records.idempotentResponses.get('key')).toEqual(answer);
    records.idempotentResponses.prune(201);
    records.idempotentResponses.prune(201);
    expect(records.idempotentResponses.get('key')).toBeUndefined();
  });
});

describe('a transaction', () => {
  test('returns the result of its work, and writes everything or nothing', () => {
    expect(
      records.transaction(() => {
        records.settings.set('a', '1');
        return 'result';
      }),
    ).toBe('result');
    const wrong = new Error('wrong');
    expect(() =>
      records.transaction(() => {
        records.settings.set('a', '2');
        records.settings.set('b', '2');
        throw wrong;
      }),
    ).toThrow(wrong);
    expect(records.settings.get('a')).toBe('1');
    expect(records.settings.get('b')).toBeUndefined();
  });

  test('rolls back a nested transaction when the outer one fails', () => {
    expect(() =>
      records.transaction(() => {
        records.transaction(() => records.transaction(() => records.settings.set('inner', '1')));
        expect(records.settings.get('inner')).toBe('1');
        throw new Error('outer');
      }),
    ).toThrow('outer');
    expect(records.settings.get('inner')).toBeUndefined();
  });

  test('rolls back only the nested transaction if the outer one catches its error', () => {
    records.transaction(() => {
      records.settings.set('before', '1');
      expect(() =>
        records.transaction(() => {
          records.settings.set('inner', '1');
          throw new Error('inner');
        }),
      ).toThrow('inner');
      records.settings.set('after', '1');
    });
    reopen();
    expect(['before', 'inner', 'after'].map(records.settings.get)).toEqual(['1', undefined, '1']);
  });

  test('rejects async work, since it would commit before the work is done', () => {
    expect(() => records.transaction(async () => records.settings.set('late', '1'))).toThrow(
      'a transaction cannot wait: its work must not be async',
    );
    expect(records.settings.get('late')).toBeUndefined();
  });
});

test('closing the records twice is safe', () => {
  records.close();
  records.close();
  records = openRecords(join(folder, 'state.db'));
});
