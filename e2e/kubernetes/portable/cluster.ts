import { setTimeout as delay } from 'node:timers/promises';
import type { KubeClient } from '#wire/kube/client.ts';
import { KubeError } from '#wire/kube/errors.ts';
import { apiVersionOf, pathOf, type Resource } from '#wire/kube/resources.ts';
import type { KubeObject } from '#wire/kube/types.ts';

/** An object of any kind, as the API server returns it. */
export interface AnyObject extends KubeObject {
  readonly apiVersion: string;
  readonly kind: string;
  readonly spec?: Readonly<Record<string, unknown>>;
  readonly status?: Readonly<Record<string, unknown>>;
}

/** A cluster that the tests know only by the address and credentials of its API server. */
export interface AnyCluster {
  /** Applies the object. If the object has a uid, only that object is changed. Returns the result. */
  apply(object: object): Promise<AnyObject>;
  /** Undefined: the object does not exist. */
  find(object: object): Promise<AnyObject | undefined>;
  list(apiVersion: string, kind: string, namespace?: string): Promise<readonly AnyObject[]>;
  /**
   * Deletes the object; if it has a uid, only the object with that uid. Succeeds if it is absent. Returns before it is
   * gone.
   */
  remove(object: object): Promise<void>;
  /** The log of a pod. */
  logOf(namespace: string, pod: string): Promise<string>;
  /** Polls until the condition holds. At the limit, throws an error with the last value. */
  waitFor<T>(what: string, read: () => Promise<T>, isDone: (seen: T) => boolean, limitMs?: number): Promise<T>;
}

const fieldManager = 'stowage-e2e';
const defaultTimeoutMs = 180_000;
const pollIntervalMs = 500;
const podLog = { group: '', version: 'v1', plural: 'pods', kind: 'Pod', namespaced: true } as const;

interface ResourceList {
  readonly resources: readonly { readonly name: string; readonly kind: string; readonly namespaced: boolean }[];
}

export function createAnyCluster(client: KubeClient, signal: AbortSignal): AnyCluster {
  const known = new Map<string, Resource<AnyObject>>();

  async function resourceOf(apiVersion: string, kind: string): Promise<Resource<AnyObject>> {
    const before = known.get(`${apiVersion} ${kind}`);
    if (before !== undefined) return before;
    const [group, version] = apiVersion.includes('/') ? apiVersion.split('/') : ['', apiVersion];
    const path = group === '' ? `/api/${version}` : `/apis/${apiVersion}`;
    const { resources } = JSON.parse(await client.raw({ method: 'GET', path }, signal)) as ResourceList;
    const found = resources.find((resource) => resource.kind === kind && !resource.name.includes('/'));
    if (found === undefined) throw new Error(`the cluster has no ${kind} in ${apiVersion}`);
    const { name: plural, namespaced } = found;
    const resource = { group: group ?? '', version: version ?? '', plural, kind, namespaced };
    known.set(`${apiVersion} ${kind}`, resource);
    return resource;
  }

  const namespacedName = ({ metadata: { namespace, name } }: AnyObject) => ({ namespace, name });
  /** The object or its kind does not exist, or another object has the name. */
  const isAbsent = (thrown: unknown): boolean => thrown instanceof KubeError && [404, 409].includes(thrown.status);
  const undefinedIfAbsent = async <T>(asking: Promise<T>): Promise<T | undefined> => {
    try {
      return await asking;
    } catch (thrown) {
      if (isAbsent(thrown)) return undefined;
      throw thrown;
    }
  };

  async function waitFor<T>(
    what: string,
    read: () => Promise<T>,
    isDone: (seen: T) => boolean,
    limitMs = defaultTimeoutMs,
  ): Promise<T> {
    const began = performance.now();
    for (;;) {
      const seen = await read();
      if (isDone(seen)) return seen;
      if (performance.now() - began > limitMs)
        throw new Error(
          `timed out while waiting for ${what}; the last value is ${JSON.stringify(seen)?.slice(0, 2_000)}`,
        );
      await delay(pollIntervalMs, undefined, { signal });
    }
  }

  return {
    waitFor: waitFor,
    apply: async (object) => {
      const thing = object as AnyObject;
      const resource = await resourceOf(thing.apiVersion, thing.kind);
      return await client.patch(
        resource,
        namespacedName(thing),
        { kind: 'apply', body: { ...thing, apiVersion: apiVersionOf(resource) }, manager: fieldManager, force: true },
        signal,
      );
    },
    find: async (object) => {
      const thing = object as AnyObject;
      const resource = await resourceOf(thing.apiVersion, thing.kind);
      return await undefinedIfAbsent(client.get(resource, namespacedName(thing), signal));
    },
    list: async (apiVersion, kind, namespace) => {
      const pages = await Array.fromAsync(client.list(await resourceOf(apiVersion, kind), { namespace }, signal));
      return pages.flatMap(({ items }) => items);
    },
    remove: async (object) => {
      const thing = object as AnyObject;
      const resource = await resourceOf(thing.apiVersion, thing.kind).catch(() => undefined);
      if (resource === undefined) return;
      const only = { propagation: 'Background', uid: thing.metadata.uid } as const;
      await undefinedIfAbsent(client.delete(resource, namespacedName(thing), only, signal));
    },
    logOf: (namespace, name) =>
      client.raw({ method: 'GET', path: `${pathOf(podLog, { namespace, name })}/log` }, signal),
  };
}
