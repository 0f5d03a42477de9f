import type { Records } from '#core/ports.ts';
import { createContainerRecords } from './containers.ts';
import { type Database, openDatabase } from './database.ts';
import { createOperations } from './operations.ts';
import { fromMount, fromToken, toMount, toSetting, toStore, toStoredResponse, toToken } from './rows.ts';
import { createVolumes } from './volumes.ts';

/** Opens and locks the file with this machine's records, and upgrades an older format. */
export function openRecords(path: string): Records {
  const db = openDatabase(path);
  return {
    transaction: db.transaction,
    groupCommit: db.groupCommit,
    settings: createSettings(db),
    stores: createStores(db),
    volumes: createVolumes(db),
    operations: createOperations(db),
    mounts: createMounts(db),
    tokens: createTokens(db),
    idempotentResponses: createIdempotentResponses(db),
    ...createContainerRecords(db),
    close: db.close,
  };
}

function createSettings(db: Database): Records['settings'] {
  const get = db.prepare('SELECT value FROM settings WHERE key = ?');
  const set = db.prepare('INSERT INTO settings VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value');
  return {
    get: (key) => {
      const row = get.get(key);
      return row === undefined ? undefined : toSetting(row);
    },
    set: (key, value) => {
      db.durably(() => set.run(key, value));
    },
  };
}

function createStores(db: Database): Records['stores'] {
  const list = db.prepare('SELECT name, uri FROM stores ORDER BY name');
  const put = db.prepare('INSERT INTO stores VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET uri = excluded.uri');
  const remove = db.prepare('DELETE FROM stores WHERE name = ?');
  return {
    list: () => list.all().map(toStore),
    put: (name, uri) => {
      db.durably(() => put.run(name, uri));
    },
    remove: (name) => {
      db.durably(() => remove.run(name));
    },
  };
}

function createMounts(db: Database): Records['mounts'] {
  const put = db.prepare('INSERT OR REPLACE INTO mounts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)');
  const remove = db.prepare('DELETE FROM mounts WHERE target = ?');
  const at = db.prepare('SELECT * FROM mounts WHERE target = ?');
  const of = db.prepare('SELECT * FROM mounts WHERE volume_id = ? ORDER BY target');
  const list = db.prepare('SELECT * FROM mounts ORDER BY target');
  return {
    put: (mount) => {
      put.run(...fromMount(mount));
    },
    remove: (target) => {
      remove.run(target);
    },
    byTarget: (target) => {
      const row = at.get(target);
      return row === undefined ? undefined : toMount(row);
    },
    byVolume: (volume) => of.all(volume).map(toMount),
    list: () => list.all().map(toMount),
  };
}

function createTokens(db: Database): Records['tokens'] {
  const put = db.prepare(`
    INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
      hash = excluded.hash, name = excluded.name, role = excluded.role, stores = excluded.stores,
      created_at = excluded.created_at, expires_at = excluded.expires_at`);
  const byHash = db.prepare('SELECT * FROM tokens WHERE hash = ?');
  const list = db.prepare('SELECT * FROM tokens ORDER BY created_at, id');
  const remove = db.prepare('DELETE FROM tokens WHERE id = ?');
  return {
    put: (token, hash) => {
      db.durably(() => put.run(...fromToken(token, hash)));
    },
    byHash: (hash) => {
      const row = byHash.get(hash);
      return row === undefined ? undefined : toToken(row);
    },
    list: () => list.all().map(toToken),
    remove: (id) => db.durably(() => remove.run(id)) > 0,
  };
}

function createIdempotentResponses(db: Database): Records['idempotentResponses'] {
  const get = db.prepare('SELECT * FROM answers WHERE key = ?');
  const put = db.prepare('INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)');
  const prune = db.prepare('DELETE FROM answers WHERE at < ?');
  return {
    get: (key) => {
      const row = get.get(key);
      return row === undefined ? undefined : toStoredResponse(row);
    },
    put: (key, { fingerprint, status, body, at }) => {
      put.run(key, fingerprint, status ?? null, body, at);
    },
    prune: (olderThan) => {
      prune.run(olderThan);
    },
  };
}
