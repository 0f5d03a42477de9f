import type { Records } from '#core/ports.ts';
import type { Database } from './database.ts';
import { fromError, fromOperation, sequenceOf, toOperation } from './rows.ts';

export function createOperations(db: Database): Records['operations'] {
  const begin = db.prepare(`
    INSERT INTO operations (id, kind, store, subject, params, state, started_at, ended_at, error)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
      kind = excluded.kind, store = excluded.store, subject = excluded.subject, params = excluded.params,
      state = excluded.state, started_at = excluded.started_at, ended_at = excluded.ended_at, error = excluded.error`);
  // Only the first end counts: a late replay must not change a result that was already returned.
  const end = db.prepare("UPDATE operations SET state = ?, ended_at = ?, error = ? WHERE id = ? AND state = 'running'");
  const unfinished = db.prepare("SELECT * FROM operations WHERE state = 'running' ORDER BY sequence");
  const get = db.prepare('SELECT * FROM operations WHERE id = ?');
  const page = db.prepare(`
    SELECT * FROM operations
    WHERE sequence < ? AND (? IS NULL OR store IN (SELECT value FROM json_each(?))) ORDER BY sequence DESC LIMIT ?`);
  // Order by end time: a client may be about to ask for a long operation that has just ended.
  const prune = db.prepare(`
    DELETE FROM operations WHERE state <> 'running' AND (ended_at, sequence) <=
      (SELECT ended_at, sequence FROM operations WHERE state <> 'running' ORDER BY ended_at DESC, sequence DESC LIMIT 1 OFFSET ?)`);
  return {
    begin: (operation) => {
      begin.run(...fromOperation(operation));
    },
    end: (id, state, endedAt, error) => {
      end.run(state, endedAt, fromError(error), id);
    },
    listUnfinished: () => unfinished.all().map(toOperation),
    get: (id) => {
      const row = get.get(id);
      return row === undefined ? undefined : toOperation(row);
    },
    page: ({ stores, after, limit }) => {
      const storesJson = stores === undefined ? null : JSON.stringify(stores);
      // Read one more row to see whether there is a next page.
      const rows = page.all(after ?? Number.MAX_SAFE_INTEGER, storesJson, storesJson, limit + 1);
      const shown = rows.slice(0, limit);
      const last = shown.at(-1);
      const next = rows.length > limit && last !== undefined ? sequenceOf(last) : undefined;
      return { items: shown.map(toOperation), next };
    },
    prune: (keep) => {
      prune.run(Math.max(0, Math.trunc(keep)));
    },
  };
}
