import type { ContainerRecords } from '#core/containers.ts';
import type { Database } from './database.ts';
import { toEngineMount, toEngineName, toReference } from './rows.ts';

/** Records about container engines: names, requested mounts, containers that reference volumes. */
export function createContainerRecords(db: Database): ContainerRecords {
  return { engineNames: createEngineNames(db), engineMounts: createEngineMounts(db), references: createReferences(db) };
}

function createEngineNames(db: Database): ContainerRecords['engineNames'] {
  const get = db.prepare('SELECT name, volume_id FROM engine_names WHERE plugin = ? AND name = ?');
  const put = db.prepare('INSERT OR REPLACE INTO engine_names VALUES (?, ?, ?)');
  const remove = db.prepare('DELETE FROM engine_names WHERE plugin = ? AND name = ?');
  const list = db.prepare('SELECT name, volume_id FROM engine_names WHERE plugin = ? ORDER BY name');
  return {
    get: (plugin, name) => {
      const row = get.get(plugin, name);
      return row === undefined ? undefined : toEngineName(row).id;
    },
    put: (plugin, name, id) => {
      put.run(plugin, name, id);
    },
    remove: (plugin, name) => {
      remove.run(plugin, name);
    },
    list: (plugin) => list.all(plugin).map(toEngineName),
  };
}

function createEngineMounts(db: Database): ContainerRecords['engineMounts'] {
  const put = db.prepare(
    'INSERT INTO holds VALUES (?, ?, ?, 1, ?) ON CONFLICT (volume_id, plugin, id) DO UPDATE SET count = count + 1',
  );
  const decrement = db.prepare(
    'UPDATE holds SET count = count - 1 WHERE volume_id = ? AND plugin = ? AND id = ? AND count > 1',
  );
  const remove = db.prepare('DELETE FROM holds WHERE volume_id = ? AND plugin = ? AND id = ?');
  const clear = db.prepare('DELETE FROM holds WHERE volume_id = ?');
  const of = db.prepare('SELECT * FROM holds WHERE volume_id = ? ORDER BY since, id');
  const list = db.prepare('SELECT * FROM holds ORDER BY volume_id, since, id');
  return {
    add: ({ volumeId, plugin, id, since }) => {
      put.run(volumeId, plugin, id, since);
    },
    release: (volume, plugin, id) => {
      if (decrement.run(volume, plugin, id) === 0) remove.run(volume, plugin, id);
    },
    clear: (volume) => {
      clear.run(volume);
    },
    byVolume: (volume) => of.all(volume).map(toEngineMount),
    list: () => list.all().map(toEngineMount),
  };
}

function createReferences(db: Database): ContainerRecords['references'] {
  const clear = db.prepare('DELETE FROM container_references WHERE engine = ?');
  const put = db.prepare('INSERT OR REPLACE INTO container_references VALUES (?, ?, ?, ?, ?)');
  const of = db.prepare('SELECT * FROM container_references WHERE volume_id = ? ORDER BY engine, name, container');
  const list = db.prepare('SELECT * FROM container_references ORDER BY engine, name, container, volume_id');
  return {
    replace: (engine, references) =>
      db.transaction(() => {
        clear.run(engine);
        for (const { container, name, volumeId, running } of references)
          put.run(engine, container, name, volumeId, running ? 1 : 0);
      }),
    byVolume: (volume) => of.all(volume).map(toReference),
    list: () => list.all().map(toReference),
  };
}
