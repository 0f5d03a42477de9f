import { unlessAborted } from '#base/aborted.ts';
import { createBackOff } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient, ObjectSelection } from '#wire/kube/client.ts';
import { KubeError } from '#wire/kube/errors.ts';
import type { Resource } from '#wire/kube/resources.ts';
import type { KubeObject } from '#wire/kube/types.ts';
import { createIndexedMap } from './indexed-map.ts';

/** Callbacks for changes. They run synchronously, so they must be fast and only enqueue keys. */
export interface Handlers<T> {
  /** Also called for all objects that are in the cache when the handlers are registered. */
  added?(object: T): void;
  changed?(object: T, before: T): void;
  /** Also called if an object is missing in a new list, was replaced by another of the same name, or is now trimmed away. */
  deleted?(before: T): void;
}

/**
 * The objects of one kind on the API server, kept up to date by a watch. The cache can be read at any time: while the API server is away,
 * it keeps the last known state.
 */
export interface Cache<T> {
  /** Whether the first list is complete. */
  readonly synced: boolean;
  whenSynced(signal: AbortSignal): Promise<void>;
  readonly size: number;
  /** When the API server last answered or sent an event, by the clock's `elapsed`. Zero: never. */
  readonly lastContactAt: number;
  get(key: string): T | undefined;
  all(): Iterable<T>;
  /** The objects for which the index function returned the value. */
  byIndex(index: string, value: string): readonly T[];
  on(handlers: Handlers<T>): Disposable;
  /** Keeps the cache up to date until the signal aborts. Call it once. */
  run(scope: Scope): Promise<void>;
}

export interface CacheOptions<Full extends KubeObject, T extends KubeObject> {
  readonly client: KubeClient;
  readonly resource: Resource<Full>;
  readonly select?: ObjectSelection;
  /**
   * Returns what to keep of an object: a new object with the fields in use, and with its name, namespace, uid and resourceVersion
   * (see `identityOf`). Undefined: the cache ignores the object.
   */
  readonly trim: (full: Full) => T | undefined;
  readonly indexes?: Readonly<Record<string, (object: T) => readonly string[]>>;
  readonly pageSize?: number;
  readonly clock: Clock;
  readonly random?: () => number;
}

/** `namespace/name`, or the name of a cluster-scoped object. */
export const keyOf = ({ metadata: { namespace, name = '' } }: KubeObject): string =>
  namespace === undefined || namespace === '' ? name : `${namespace}/${name}`;

/** The metadata that every trimmed object must keep. */
export function identityOf({ metadata }: KubeObject): KubeObject['metadata'] {
  const { name = '', namespace, uid = '', resourceVersion = '' } = metadata;
  return { name, ...(namespace === undefined ? {} : { namespace }), uid, resourceVersion };
}

export function createCache<Full extends KubeObject, T extends KubeObject>(options: CacheOptions<Full, T>): Cache<T> {
  const { client, resource, select = {}, trim, clock, random = Math.random, pageSize } = options;
  const objects = createIndexedMap<T>(options.indexes ?? {});
  const listeners = new Set<Handlers<T>>();
  const backOff = createBackOff({ firstMs: 500, maxMs: 15_000, random });
  const firstList = Promise.withResolvers<void>();
  let isSynced = false;
  let lastContactAt = 0;

  function notify(scope: Scope, call: (handlers: Handlers<T>) => void): void {
    for (const handlers of listeners) {
      try {
        call(handlers);
      } catch (error) {
        scope.log.error('a cache handler failed', { resource: resource.plural, error });
      }
    }
  }

  function remove(key: string, scope: Scope): void {
    const before = objects.remove(key);
    if (before !== undefined) notify(scope, (handlers) => handlers.deleted?.(before));
  }

  function applyObject(full: Full, scope: Scope): void {
    const key = keyOf(full);
    const object = trim(full);
    const known = objects.get(key);
    if (known !== undefined && known.metadata.resourceVersion === full.metadata.resourceVersion) return;
    // A recreated object of the same name is a deletion and an addition.
    const isRecreated = known !== undefined && known.metadata.uid !== full.metadata.uid;
    if (isRecreated || object === undefined) remove(key, scope);
    if (object === undefined) return;
    const before = objects.put(key, object);
    if (before === undefined) notify(scope, (handlers) => handlers.added?.(object));
    else notify(scope, (handlers) => handlers.changed?.(object, before));
  }

  /** Lists page by page, to hold only one page in memory. Returns the resourceVersion to watch from. */
  async function list(scope: Scope): Promise<string> {
    const listedKeys = new Set<string>();
    let resourceVersion = '';
    const query = { ...select, ...(pageSize === undefined ? {} : { limit: pageSize }) };
    for await (const page of client.list(resource, query, scope.signal)) {
      lastContactAt = clock.elapsed();
      ({ resourceVersion } = page);
      for (const full of page.items) {
        listedKeys.add(keyOf(full));
        applyObject(full, scope);
      }
    }
    // Remove objects that were deleted while there was no watch.
    for (const key of objects.keys()) if (!listedKeys.has(key)) remove(key, scope);
    if (!isSynced) scope.log.debug('the cache is synced', { resource: resource.plural, objects: objects.size });
    isSynced = true;
    firstList.resolve();
    return resourceVersion;
  }

  /** Watches until a new list is needed. */
  async function watchChanges(resourceVersion: string, scope: Scope): Promise<void> {
    for await (const change of client.watch(resource, { ...select, resourceVersion }, scope.signal)) {
      lastContactAt = clock.elapsed();
      backOff.reset();
      if (change.kind === 'bookmark') continue;
      if (change.kind === 'deleted') remove(keyOf(change.object), scope);
      else applyObject(change.object, scope);
    }
  }

  return {
    get synced() {
      return isSynced;
    },
    get size() {
      return objects.size;
    },
    get lastContactAt() {
      return lastContactAt;
    },
    whenSynced: (signal) => unlessAborted(firstList.promise, signal),
    get: (key) => objects.get(key),
    all: () => objects.values(),
    byIndex: (index, value) => objects.byIndex(index, value),
    on: (handlers) => {
      listeners.add(handlers);
      for (const object of objects.values()) handlers.added?.(object);
      return { [Symbol.dispose]: () => listeners.delete(handlers) };
    },
    run: async (scope) => {
      const { signal, log } = scope;
      while (!signal.aborted) {
        let retryAfterMs = 0;
        try {
          await watchChanges(await list(scope), scope);
          log.debug('listing again', { resource: resource.plural });
        } catch (error) {
          if (signal.aborted) return;
          log.warn('the cache is out of date', { resource: resource.plural, error });
          retryAfterMs = error instanceof KubeError ? error.retryAfterMs : 0;
        }
        await sleepUnlessAborted(clock, Math.max(retryAfterMs, backOff.next()), signal);
      }
    },
  };
}

/** Sleeps, or returns early when the signal aborts. */
async function sleepUnlessAborted(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  try {
    await clock.sleep(ms, signal);
  } catch (thrown) {
    if (!signal.aborted) throw thrown;
  }
}
