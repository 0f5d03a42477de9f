import { open, readFile, rename } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { untilAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import type { Log, Scope } from '#base/log.ts';
import { makeFolders } from '#base/make-folders.ts';
import { type Cache, createCache, identityOf } from '#controllers/machinery/cache.ts';
import { configsOf, type StoreObject, storeObjects } from '#controllers/store-object.ts';
import { stowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import type { StoreKind } from '#core/ports.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { isWithin, localDirectoryOf } from './store-overlaps.ts';

/** The stores that the Store objects of a cluster define, as known to a node, also while the API server is down and after a restart. */
export interface ClusterStores {
  /** The current stores, without invalid objects. */
  configs(kinds: ReadonlyMap<string, StoreKind>): Promise<readonly StoreConfig[]>;
  /** Watches Store objects until the signal is aborted. Call it once. */
  watch(scope: Scope): Promise<void>;
  /** Resolves when the stores are known, from the API server or from the file; after a few seconds at the latest. */
  whenKnown(signal: AbortSignal): Promise<void>;
  /**
   * Applies every change until the signal is aborted; never writes to the API server. `apply` returns the names of deleted stores that stay
   * for now because volumes of them are mounted: these are kept for a restart, too.
   */
  follow(apply: () => Promise<readonly string[]>, scope: Scope): Promise<void>;
}

export interface ClusterStoresOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly log: Log;
  /** The state folder. It keeps the stores in a file; local stores in its folder `stores` get their directories created, others do not. */
  readonly state: string;
}

interface StoredFile {
  readonly version: 1;
  readonly stores: readonly StoreObject[];
}

/** Pods wait for a node that starts for the first time; without an API server there is nothing to wait for. */
const firstSyncTimeoutMs = 5_000;
const retryIntervalMs = 10_000;

export async function createClusterStores(options: ClusterStoresOptions): Promise<ClusterStores> {
  const { client, clock, log, state } = options;
  const [file, storesFolder] = [join(state, 'cluster-stores.json'), join(state, 'stores')];
  const savedStores = await readSavedStores(file, log);
  const cache = createStoreCache(client, clock);
  let written = savedStores ?? [];
  const warned = new Map<string, string>();
  let changed = Promise.withResolvers<void>();
  const resolveChanged = (): void => changed.resolve();
  cache.on({ added: resolveChanged, changed: resolveChanged, deleted: resolveChanged });

  const objects = (): readonly StoreObject[] => (cache.synced ? [...cache.all()] : (savedStores ?? []));

  function warnOnce(name: string, message: string): void {
    if (warned.get(name) !== message) log.warn('ignoring an invalid Store object', { store: name, why: message });
    warned.set(name, message);
  }

  return {
    configs: async (kinds) => {
      const { configs, invalid } = configsOf(objects(), kinds);
      for (const [name, { message }] of invalid) warnOnce(name, message);
      for (const config of configs)
        await createLocalDirectory(config.name, localDirectoryOf(kinds, config)?.path ?? '');
      return configs;
    },
    watch: async (scope) => {
      await cache.run(scope);
    },
    whenKnown: async (signal) => {
      if (savedStores !== undefined) return;
      const either = AbortSignal.any([signal, AbortSignal.timeout(firstSyncTimeoutMs)]);
      await cache.whenSynced(either).catch(() => undefined);
      if (!cache.synced) log.warn('starting without stores: the API server has not responded yet');
    },
    follow: async (apply, { signal }) => {
      await cache.whenSynced(signal).catch(() => undefined);
      while (!signal.aborted) {
        // Later changes resolve the new promise.
        changed = Promise.withResolvers<void>();
        const isDone = await tryApply(apply);
        const pause = isDone ? changed.promise : clock.sleep(retryIntervalMs, signal).catch(() => undefined);
        await untilAborted(pause, signal);
      }
    },
  };

  async function saveStores(stores: readonly StoreObject[]): Promise<void> {
    if (isDeepStrictEqual(stores, written)) return;
    await writeSavedStores(file, { version: 1, stores });
    written = stores;
  }

  /** Creates directories in the state folder only: elsewhere a disk may not be mounted, and the data would go to the disk below. */
  async function createLocalDirectory(name: string, path: string): Promise<void> {
    if (!isWithin(path, storesFolder)) return;
    try {
      await makeFolders(path, 0o755);
    } catch (thrown) {
      log.warn('cannot create the directory of a store', { store: name, why: stowageError(thrown).message });
    }
  }

  async function tryApply(apply: () => Promise<readonly string[]>): Promise<boolean> {
    try {
      const next = objects();
      const gone = written.filter(({ metadata }) => !next.some((one) => one.metadata.name === metadata.name));
      await saveStores([...next, ...gone]);
      const staying = await apply();
      await saveStores([...next, ...gone.filter(({ metadata }) => staying.includes(metadata.name ?? ''))]);
      return true;
    } catch (thrown) {
      log.error('failed to apply the changed stores', { why: stowageError(thrown).message });
      return false;
    }
  }
}

const createStoreCache = (client: KubeClient, clock: Clock): Cache<StoreObject> =>
  createCache<StoreObject, StoreObject>({
    client,
    clock,
    resource: storeObjects,
    trim: ({ metadata, spec: { uri, options } }) => {
      const { deletionTimestamp } = metadata;
      return {
        metadata: { ...identityOf({ metadata }), ...(deletionTimestamp === undefined ? {} : { deletionTimestamp }) },
        spec: { uri, ...(options === undefined ? {} : { options }) },
      };
    },
  });

/** Undefined: there is no file, or it cannot be read. */
async function readSavedStores(file: string, log: Log): Promise<readonly StoreObject[] | undefined> {
  try {
    const { version, stores } = JSON.parse(await readFile(file, 'utf8')) as StoredFile;
    if (version === 1 && Array.isArray(stores)) return stores;
    log.warn('ignoring the saved stores: unknown format', { file });
  } catch (thrown) {
    if (!isErrno(thrown, 'ENOENT'))
      log.warn('cannot read the saved stores', { file, why: stowageError(thrown).message });
  }
  return undefined;
}

/** Writes atomically and durably, also across a power failure. */
async function writeSavedStores(file: string, kept: StoredFile): Promise<void> {
  await makeFolders(dirname(file), 0o700);
  const draft = `${file}.new`;
  await using handle = await open(draft, 'w', 0o600);
  await handle.writeFile(JSON.stringify(kept));
  await handle.sync();
  await rename(draft, file);
  await using folder = await open(dirname(file), 'r');
  await folder.sync();
}
