import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeId } from '#core/model.ts';
import type { Records, VolumeQuery } from '#core/ports.ts';
import type { Database, Row, Statement } from './database.ts';
import { fromVolume, labelTexts, toTotals, toVolume, toVolumeName, volumeColumns } from './rows.ts';

type Volumes = Records['volumes'];

const maxPageSize = 10_000;
const maxCachedVolumes = 128;
/** SQLite joins at most 64 tables. */
const maxLabelFilters = 32;
const volumeFrom = (row: Row | undefined): Volume | undefined => (row === undefined ? undefined : toVolume(row));

export function createVolumes(db: Database): Volumes {
  const byId = db.prepare(`SELECT ${volumeColumns} FROM volumes v WHERE id = ?`);
  const byName = db.prepare(`SELECT ${volumeColumns} FROM volumes v WHERE store = ? AND name = ?`);
  const byRequest = db.prepare(`SELECT ${volumeColumns} FROM volumes v WHERE request_id = ? AND store = ?`);
  // There are few stores: searching each costs less than an index of names that every create would have to update.
  const named = db.prepare(`
    SELECT ${volumeColumns} FROM store_totals s CROSS JOIN volumes v ON v.store = s.store AND v.name = ? ORDER BY s.store`);
  const names = db.prepare('SELECT id, name FROM volumes WHERE store = ? ORDER BY name');
  const totals = db.prepare('SELECT volumes, bytes_high, bytes_low FROM store_totals WHERE store = ?');
  const storeDeletes = ['volumes', 'volume_labels', 'store_totals'].map((t) =>
    db.prepare(`DELETE FROM ${t} WHERE store = ?`),
  );
  const cache = createVolumeCache(db, byId);
  return {
    ...createWrites(db, byId, byName, cache),
    byId: cache.get,
    byName: (store, name) => volumeFrom(byName.get(store, name)),
    allByName: (name) => named.all(name).map(toVolume),
    byRequest: (store, requestId) => volumeFrom(byRequest.get(requestId, store)),
    page: createPaging(db),
    names: (store) => names.all(store).map(toVolumeName),
    totals: (store) => toTotals(totals.get(store)),
    forgetStore: (store) =>
      db.transaction(() => {
        cache.clear();
        for (const forget of storeDeletes) forget.run(store);
      }),
  };
}

/** A cache of volumes by id: a mount reads its volume about ten times. */
interface VolumeCache {
  get(id: VolumeId): Volume | undefined;
  clear(): void;
}

function createVolumeCache(db: Database, byId: Statement): VolumeCache {
  const volumes = new Map<VolumeId, Volume>();
  return {
    get: (id) => {
      // Bypass the cache inside a transaction, which may be rolled back.
      const known = db.isTransaction() ? undefined : volumes.get(id);
      if (known !== undefined) return known;
      const found = volumeFrom(byId.get(id));
      if (found === undefined || db.isTransaction()) return found;
      if (volumes.size === maxCachedVolumes) volumes.clear();
      volumes.set(id, found);
      return found;
    },
    clear: () => volumes.clear(),
  };
}

function createWrites(
  db: Database,
  byId: Statement,
  byName: Statement,
  cache: VolumeCache,
): Pick<Volumes, 'put' | 'remove'> {
  const upsert = db.prepare(`
    INSERT INTO volumes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
      store = excluded.store, name = excluded.name, bytes = excluded.bytes, access = excluded.access,
      labels = excluded.labels, request_id = excluded.request_id, created_at = excluded.created_at,
      revision = excluded.revision, instance = excluded.instance, enforce = excluded.enforce`);
  const drop = db.prepare('DELETE FROM volumes WHERE id = ?');
  const addLabel = db.prepare('INSERT INTO volume_labels VALUES (?, ?, ?)');
  const dropLabel = db.prepare('DELETE FROM volume_labels WHERE label = ? AND store = ? AND name = ?');
  const unlabel = ({ labels, store, name }: Volume): void => {
    for (const label of labelTexts(labels)) dropLabel.run(label, store, name);
  };
  const removeVolume = (volume: Volume): void => {
    unlabel(volume);
    drop.run(volume.id);
  };
  return {
    put: (volume) =>
      db.transaction(() => {
        cache.clear();
        const previous = volumeFrom(byId.get(volume.id));
        if (previous !== undefined) unlabel(previous);
        // The store decides which volume has the name, so a record of another id with this name is stale.
        const staleRecord = volumeFrom(byName.get(volume.store, volume.name));
        if (staleRecord !== undefined && staleRecord.id !== volume.id) removeVolume(staleRecord);
        upsert.run(...fromVolume(volume));
        for (const label of labelTexts(volume.labels)) addLabel.run(label, volume.store, volume.name);
      }),
    remove: (id) =>
      db.transaction(() => {
        cache.clear();
        const volume = volumeFrom(byId.get(id));
        if (volume !== undefined) removeVolume(volume);
      }),
  };
}

/**
 * Queries store by store, ordered by name: each query walks one index, independent of the number of volumes. A single statement over
 * several stores would sort all of them for each page. An empty list of stores gives no volumes: it may be the scope of a
 * token.
 */
function createPaging(db: Database): Volumes['page'] {
  const statements = new Map<number, Statement>();
  const forLabels = (count: number): Statement => {
    const known = statements.get(count);
    if (known !== undefined) return known;
    const prepared = db.prepare(pageSql(count));
    statements.set(count, prepared);
    return prepared;
  };

  return (query) => {
    checkLimit(query.limit);
    const { after, contains = null } = query;
    const labels = labelTexts(query.labels);
    if (labels.length > maxLabelFilters) throw tooManyLabels(labels.length);
    const statement = forLabels(labels.length);
    const page: Volume[] = [];
    for (const store of [...new Set<string>(query.stores)].sort()) {
      if (page.length === query.limit) break;
      if (after !== undefined && store < after.store) continue;
      const from = after !== undefined && store === after.store ? after.name : '';
      const rows = statement.all(store, from, contains, contains, ...labels, query.limit - page.length);
      for (const row of rows) page.push(toVolume(row));
    }
    return page;
  };
}

/** Scans the index of the first label and looks up the others for each hit. CROSS JOIN makes SQLite keep this order. */
function pageSql(labels: number): string {
  const [first, ...others] = Array.from({ length: labels }, (_, index) => `l${index}`);
  const lead = first ?? 'v';
  const joins = [...others, 'v'].map(
    (t) => `CROSS JOIN ${t === 'v' ? 'volumes' : 'volume_labels'} ${t} USING (store, name)`,
  );
  const otherLabelFilters = [first, ...others].filter((t) => t !== undefined).map((t) => `AND ${t}.label = ?`);
  return `
    SELECT ${volumeColumns} FROM ${first === undefined ? 'volumes v' : `volume_labels ${first} ${joins.join(' ')}`}
    WHERE ${lead}.store = ? AND ${lead}.name > ? AND (? IS NULL OR instr(${lead}.name, ?) > 0) ${otherLabelFilters.join(' ')}
    ORDER BY ${lead}.name LIMIT ?`;
}

function checkLimit(limit: VolumeQuery['limit']): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= maxPageSize) return;
  throw new StowageError(`a page cannot hold ${limit} volumes`, {
    code: 'out-of-range',
    reason: 'page-limit',
    action: `Ask for 1 to ${maxPageSize} at a time, and continue after the last one.`,
  });
}

function tooManyLabels(count: number): StowageError {
  return new StowageError(`volumes cannot be filtered by ${count} labels at once`, {
    code: 'out-of-range',
    reason: 'label-filters',
    action: `Give at most ${maxLabelFilters} labels.`,
  });
}
