import { unlessAborted } from '#base/aborted.ts';
import { createBackOff } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient, Selection } from '#wire/kube/client.ts';
import { KubeError } from '#wire/kube/errors.ts';
import type { Resource } from '#wire/kube/resources.ts';
import type { KubeObject } from '#wire/kube/types.ts';
import { createIndexed } from './indexed.ts';

/** What is told of changes. Nothing is told while a handler runs: it is quick, and only notes which keys to look at. */
export interface Handlers<T> {
  /** Also for everything that is there already when the handlers are given. */
  added?(object: T): void;
  changed?(object: T, before: T): void;
  /** Also when it was only missed in a list, when another of the same name took its place, or when it is left out by now. */
  deleted?(before: T): void;
}

/**
 * The objects of one kind as the API server had them a moment ago. It can be read at any time: while the API server is not
 * there, it says what was true before.
 */
export interface Cache<T> {
  /** Whether everything was seen once. */
  readonly synced: boolean;
  whenSynced(signal: AbortSignal): Promise<void>;
  readonly size: number;
  /** When the API server was last heard, by the clock's `elapsed`; zero: never. */
  readonly lastContactAt: number;
  get(key: string): T | undefined;
  all(): Iterable<T>;
  /** Those for which the index gave that value. */
  by(index: string, value: string): readonly T[];
  on(handlers: Handlers<T>): Disposable;
  /** Keeps it up to date until the signal ends it. To be called once. */
  run(scope: Scope): Promise<void>;
}

export interface CacheOptions<Full extends KubeObject, T extends KubeObject> {
  readonly client: KubeClient;
  readonly resource: Resource<Full>;
  readonly select?: Selection;
  /**
   * What is kept of an object: a new object with the fields that are used, and with its name, namespace, uid and
   * resourceVersion (see `identityOf`). Undefined: nothing, it is as if it were not there.
   */
  readonly trim: (full: Full) => T | undefined;
  readonly indexes?: Readonly<Record<string, (object: T) => readonly string[]>>;
  readonly pageSize?: number;
  readonly clock: Clock;
  readonly random?: () => number;
}

/** `namespace/name`, or only the name. */
export const keyOf = ({ metadata: { namespace, name = '' } }: KubeObject): string =>
  namespace === undefined || namespace === '' ? name : `${namespace}/${name}`;

/** What every trimmed object has to keep. */
export function identityOf({ metadata }: KubeObject): KubeObject['metadata'] {
  const { name = '', namespace, uid = '', resourceVersion = '' } = metadata;
  return { name, ...(namespace === undefined ? {} : { namespace }), uid, resourceVersion };
}

export function createCache<Full extends KubeObject, T extends KubeObject>(options: CacheOptions<Full, T>): Cache<T> {
  const { client, resource, select = {}, trim, clock, random = Math.random, pageSize } = options;
  const objects = createIndexed<T>(options.indexes ?? {});
  const listeners = new Set<Handlers<T>>();
  const backOff = createBackOff({ firstMs: 500, mostMs: 15_000, random });
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

  function put(full: Full, scope: Scope): void {
    const key = keyOf(full);
    const object = trim(full);
    const known = objects.get(key);
    if (known !== undefined && known.metadata.resourceVersion === full.metadata.resourceVersion) return;
    // Another one of the same name is not a change of this one.
    const isOther = known !== undefined && known.metadata.uid !== full.metadata.uid;
    if (isOther || object === undefined) remove(key, scope);
    if (object === undefined) return;
    const before = objects.put(key, object);
    if (before === undefined) notify(scope, (handlers) => handlers.added?.(object));
    else notify(scope, (handlers) => handlers.changed?.(object, before));
  }

  /** Page by page, each forgotten when the next one comes. */
  async function list(scope: Scope): Promise<string> {
    const seen = new Set<string>();
    let resourceVersion = '';
    const query = { ...select, ...(pageSize === undefined ? {} : { limit: pageSize }) };
    for await (const page of client.list(resource, query, scope.signal)) {
      lastContactAt = clock.elapsed();
      ({ resourceVersion } = page);
      for (const full of page.items) {
        seen.add(keyOf(full));
        put(full, scope);
      }
    }
    // Deleted while nobody watched.
    for (const key of objects.keys()) if (!seen.has(key)) remove(key, scope);
    if (!isSynced) scope.log.debug('the cache is synced', { resource: resource.plural, objects: objects.size });
    isSynced = true;
    firstList.resolve();
    return resourceVersion;
  }

  /** Until a new list is needed. */
  async function follow(resourceVersion: string, scope: Scope): Promise<void> {
    for await (const change of client.watch(resource, { ...select, resourceVersion }, scope.signal)) {
      lastContactAt = clock.elapsed();
      backOff.reset();
      if (change.kind === 'bookmark') continue;
      if (change.kind === 'deleted') remove(keyOf(change.object), scope);
      else put(change.object, scope);
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
    by: (index, value) => objects.by(index, value),
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
          await follow(await list(scope), scope);
          log.debug('listing again', { resource: resource.plural });
        } catch (error) {
          if (signal.aborted) return;
          log.warn('the cache is out of date', { resource: resource.plural, error });
          retryAfterMs = error instanceof KubeError ? error.retryAfterMs : 0;
        }
        await pause(clock, Math.max(retryAfterMs, backOff.next()), signal);
      }
    },
  };
}

/** Until then, or until the signal ends it. */
async function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  try {
    await clock.sleep(ms, signal);
  } catch (thrown) {
    if (!signal.aborted) throw thrown;
  }
}
