import { createBackOff } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from './client.ts';
import { KubeError } from './errors.ts';
import type { Resource } from './resources.ts';
import type { KubeObject } from './types.ts';

/** A cached copy of one object, kept up to date by a watch. */
export interface WatchedObject<T> {
  /** Whether the object was listed at least once. */
  readonly synced: boolean;
  /** Undefined: the object does not exist, or was not listed yet. */
  readonly object: T | undefined;
  /** Calls `changed` after each change, and after the first list. */
  onChange(changed: () => void): Disposable;
  /** Keeps it up to date until the signal is aborted. Call it once. */
  run(scope: Scope): Promise<void>;
}

export interface WatchedObjectOptions<T extends KubeObject> {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly resource: Resource<T>;
  readonly namespace: string;
  readonly name: string;
  readonly random?: () => number;
}

/** Selects the object by name, so that the permission to get this one object is enough. */
export function createWatchedObject<T extends KubeObject>(options: WatchedObjectOptions<T>): WatchedObject<T> {
  const { client, clock, resource, namespace, name, random = Math.random } = options;
  const selection = { namespace, fieldSelector: `metadata.name=${name}` };
  const listeners = new Set<() => void>();
  const backOff = createBackOff({ firstMs: 500, maxMs: 15_000, random });
  let object: T | undefined;
  let isSynced = false;

  function update(found: T | undefined): void {
    const isSame = isSynced && found?.metadata.resourceVersion === object?.metadata.resourceVersion;
    object = found;
    isSynced = true;
    if (!isSame) for (const changed of listeners) changed();
  }

  async function list(signal: AbortSignal): Promise<string> {
    let found: T | undefined;
    let resourceVersion = '';
    for await (const page of client.list(resource, selection, signal)) {
      ({ resourceVersion } = page);
      found ??= page.items.find((one) => one.metadata.name === name);
    }
    update(found);
    return resourceVersion;
  }

  async function watch(resourceVersion: string, signal: AbortSignal): Promise<void> {
    for await (const change of client.watch(resource, { ...selection, resourceVersion }, signal)) {
      backOff.reset();
      if (change.kind === 'bookmark' || change.object.metadata.name !== name) continue;
      update(change.kind === 'deleted' ? undefined : change.object);
    }
  }

  return {
    get synced() {
      return isSynced;
    },
    get object() {
      return object;
    },
    onChange: (changed) => {
      listeners.add(changed);
      return { [Symbol.dispose]: () => listeners.delete(changed) };
    },
    run: async ({ signal, log }) => {
      while (!signal.aborted) {
        let retryAfterMs = 0;
        try {
          await watch(await list(signal), signal);
        } catch (error) {
          if (signal.aborted) return;
          log.warn('watching an object failed', { resource: resource.plural, name, error });
          retryAfterMs = error instanceof KubeError ? error.retryAfterMs : 0;
        }
        await clock.sleep(Math.max(retryAfterMs, backOff.next()), signal).catch(() => undefined);
      }
    },
  };
}
