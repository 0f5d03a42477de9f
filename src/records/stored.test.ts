import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { StoreName } from '#core/model.ts';
import type { Records } from '#core/ports.ts';
import * as stored from './fixtures/make-version-3.ts';
import { openRecords } from './sqlite.ts';

const sql = readFileSync(new URL('fixtures/version-3.sql', import.meta.url), 'utf8');
const explanation =
  'state.db is no longer what 0.1 writes. Upgrades must read what 0.1 wrote, so version-3.sql never changes. ' +
  'To write something differently, add a migration and a new fixture, version-N.sql';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-stored-'));
  path = join(folder, 'state.db');
});
afterEach(() => rmSync(folder, { recursive: true }));

test('the tables and rows of state.db are byte for byte those of 0.1', () => {
  expect(stored.dumpOfCurrentVersion(), explanation).toBe(sql);
});

describe('a state.db that 0.1 wrote', () => {
  let records: Records;
  beforeEach(() => {
    const db = new DatabaseSync(path);
    db.exec(sql);
    db.close();
    records = openRecords(path);
    onTestFinished(() => records.close());
  });

  test('gives settings and stores', () => {
    for (const [key, value] of stored.settings) expect(records.settings.get(key)).toBe(value);
    expect(records.stores.list()).toEqual(stored.stores);
  });

  test('gives volumes by id, name, request and label, and their totals', () => {
    for (const volume of stored.volumes) {
      expect(records.volumes.byId(volume.id)).toEqual(volume);
      expect(records.volumes.byName(volume.store, volume.name)).toEqual(volume);
    }
    const [full, plain] = stored.volumes;
    expect(records.volumes.byRequest('silver' as StoreName, plain?.requestId ?? '')).toEqual(plain);
    const query = { stores: ['default' as StoreName], labels: full?.labels ?? {}, limit: 9 };
    expect(records.volumes.page({ ...query, contains: undefined, after: undefined })).toEqual([full]);
    expect(records.volumes.totals('default' as StoreName)).toEqual({ volumes: 2, bytes: 2n ** 53n + 1n });
  });

  test('gives operations, including interrupted ones', () => {
    for (const operation of stored.operations) expect(records.operations.get(operation.id)).toEqual(operation);
    expect(records.operations.listUnfinished()).toEqual(stored.operations.slice(0, 2));
  });

  test('gives mounts with sources of every kind', () => {
    expect(records.mounts.list()).toEqual(stored.mounts);
    expect(records.mounts.byVolume(stored.volumeId(2))).toEqual(stored.mounts.slice(3));
  });

  test('gives tokens by their hashes, and idempotent responses', () => {
    for (const { hash, token } of stored.tokens) expect(records.tokens.byHash(hash)).toEqual(token);
    for (const [key, answer] of stored.answers) expect(records.idempotentResponses.get(key)).toEqual(answer);
  });

  test('gives the records about container engines', () => {
    for (const { plugin, name, id } of stored.engineNames) expect(records.engineNames.get(plugin, name)).toBe(id);
    expect(records.engineMounts.list()).toEqual(stored.holds);
    expect(records.references.list()).toEqual(stored.references);
  });
});
