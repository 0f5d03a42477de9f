import type { DatabaseSync } from 'node:sqlite';
import { newerError } from './errors.ts';

/** Format 1. Times are milliseconds since 1970; `labels`, `params`, `error`, `source` and a token's `stores` are JSON. */
const format1 = `
  CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
  CREATE TABLE stores (name TEXT PRIMARY KEY, uri TEXT NOT NULL) STRICT, WITHOUT ROWID;

  CREATE TABLE volumes (
    id TEXT PRIMARY KEY,
    store TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER,
    access TEXT NOT NULL,
    labels TEXT NOT NULL,
    request_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    instance TEXT NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE UNIQUE INDEX volumes_by_store ON volumes (store, name);
  CREATE INDEX volumes_by_request ON volumes (request_id);

  -- For searching only; volumes.labels is authoritative. A label is the JSON text ["key","value"], which can represent what
  -- UTF-8 (lone surrogates) and C strings (NUL) cannot.
  CREATE TABLE volume_labels (
    label TEXT NOT NULL,
    store TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (label, store, name)
  ) STRICT, WITHOUT ROWID;

  -- A store with limits reads its totals at every create, so they are stored, not counted. High and low halves are summed separately:
  -- SQLite silently turns a sum beyond 2^63 into a floating point number.
  CREATE TABLE store_totals (
    store TEXT PRIMARY KEY,
    volumes INTEGER NOT NULL,
    bytes_high INTEGER NOT NULL,
    bytes_low INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE TRIGGER volume_added AFTER INSERT ON volumes BEGIN
    INSERT INTO store_totals VALUES (new.store, 1, ifnull(new.bytes, 0) >> 32, ifnull(new.bytes, 0) & 0xffffffff)
    ON CONFLICT (store) DO UPDATE SET
      volumes = volumes + 1, bytes_high = bytes_high + excluded.bytes_high, bytes_low = bytes_low + excluded.bytes_low;
  END;
  CREATE TRIGGER volume_removed AFTER DELETE ON volumes BEGIN
    UPDATE store_totals SET
      volumes = volumes - 1,
      bytes_high = bytes_high - (ifnull(old.bytes, 0) >> 32),
      bytes_low = bytes_low - (ifnull(old.bytes, 0) & 0xffffffff)
    WHERE store = old.store;
  END;
  CREATE TRIGGER volume_changed AFTER UPDATE OF store, bytes ON volumes
  WHEN old.store <> new.store OR old.bytes IS NOT new.bytes BEGIN
    UPDATE store_totals SET
      volumes = volumes - 1,
      bytes_high = bytes_high - (ifnull(old.bytes, 0) >> 32),
      bytes_low = bytes_low - (ifnull(old.bytes, 0) & 0xffffffff)
    WHERE store = old.store;
    INSERT INTO store_totals VALUES (new.store, 1, ifnull(new.bytes, 0) >> 32, ifnull(new.bytes, 0) & 0xffffffff)
    ON CONFLICT (store) DO UPDATE SET
      volumes = volumes + 1, bytes_high = bytes_high + excluded.bytes_high, bytes_low = bytes_low + excluded.bytes_low;
  END;

  CREATE TABLE operations (
    sequence INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    store TEXT,
    subject TEXT NOT NULL,
    params TEXT NOT NULL,
    state TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    error TEXT
  ) STRICT;
  CREATE INDEX operations_ended ON operations (ended_at, sequence) WHERE state <> 'running';

  CREATE TABLE mounts (
    target TEXT PRIMARY KEY,
    volume_id TEXT NOT NULL,
    source TEXT NOT NULL,
    read_only INTEGER NOT NULL,
    user_kind TEXT NOT NULL,
    user_name TEXT NOT NULL,
    user_node TEXT NOT NULL,
    since INTEGER NOT NULL,
    made_target INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX mounts_by_volume ON mounts (volume_id);

  CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    stores TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE answers (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    status INTEGER,
    body TEXT NOT NULL,
    at INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX answers_by_age ON answers (at);
`;

const format0Tables = ['settings', 'stores', 'volumes', 'operations', 'mounts', 'tokens'] as const;

/** Format 0 had no labels, revisions, instances, made targets or token scopes, and stored bytes as text. */
const copyFromFormat0 = `
  INSERT INTO settings SELECT key, value FROM old_settings;
  INSERT INTO stores SELECT name, uri FROM old_stores;
  INSERT INTO volumes
    SELECT id, store, name, CAST(bytes AS INTEGER), access, '{}', request_id, created_at, 1,
      ifnull((SELECT value FROM old_settings WHERE key = 'instance'), '')
    FROM old_volumes;
  INSERT INTO operations
    SELECT rowid, id, kind, store, subject, params, state, started_at, ended_at, error FROM old_operations ORDER BY rowid;
  INSERT INTO mounts SELECT target, volume_id, source, read_only, user_kind, user_name, user_node, since, 0 FROM old_mounts;
  INSERT INTO tokens SELECT id, hash, name, role, '[]', created_at, NULL FROM old_tokens;
`;

/** New files and files of format 0 take the same path, so both end up with the same tables. */
function toFormat1(db: DatabaseSync): void {
  const isFormat0 =
    db.prepare("SELECT count(*) AS n FROM sqlite_schema WHERE type = 'table' AND name = 'volumes'").get()?.['n'] === 1;
  if (isFormat0) for (const table of format0Tables) db.exec(`ALTER TABLE ${table} RENAME TO old_${table}`);
  db.exec(format1);
  if (!isFormat0) return;
  db.exec(copyFromFormat0);
  for (const table of format0Tables) db.exec(`DROP TABLE old_${table}`);
}

/** Format 2: whether a volume's size is enforced. */
const toFormat2 = (db: DatabaseSync): void =>
  db.exec('ALTER TABLE volumes ADD COLUMN enforce INTEGER NOT NULL DEFAULT 0');

/** Format 3: records about container engines. */
const format3 = `
  CREATE TABLE engine_names (
    plugin TEXT NOT NULL,
    name TEXT NOT NULL,
    volume_id TEXT NOT NULL,
    PRIMARY KEY (plugin, name)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX engine_names_by_volume ON engine_names (volume_id);

  CREATE TABLE holds (
    volume_id TEXT NOT NULL,
    plugin TEXT NOT NULL,
    id TEXT NOT NULL,
    count INTEGER NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (volume_id, plugin, id)
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE container_references (
    engine TEXT NOT NULL,
    container TEXT NOT NULL,
    name TEXT NOT NULL,
    volume_id TEXT NOT NULL,
    running INTEGER NOT NULL,
    PRIMARY KEY (engine, container, volume_id)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX references_by_volume ON container_references (volume_id);
`;
const toFormat3 = (db: DatabaseSync): void => db.exec(format3);

/** The n-th migration leads from format n to format n + 1. Released migrations never change. */
const migrations: readonly ((db: DatabaseSync) => void)[] = [toFormat1, toFormat2, toFormat3];

export function migrate(db: DatabaseSync, path: string): void {
  const version = Number(db.prepare('PRAGMA user_version').get()?.['user_version']);
  if (version > migrations.length) throw newerError(path, version, migrations.length);
  for (const [index, migration] of migrations.slice(version).entries()) {
    // Set the version in the same transaction, so that a crash leaves either the old format or the new one.
    db.exec('BEGIN IMMEDIATE');
    try {
      migration(db);
      db.exec(`PRAGMA user_version = ${version + index + 1}; COMMIT`);
    } catch (cause) {
      if (db.isTransaction) db.exec('ROLLBACK');
      throw cause;
    }
  }
}
