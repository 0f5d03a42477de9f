import type { Clock } from '#base/clock.ts';
import type { KubeAccess } from './access.ts';
import { garbled, parsed } from './errors.ts';
import { type ApiRequest, callOf, createKubeHttp } from './http.ts';
import { apiVersionOf, type ObjectPath, pathOf, type Resource } from './resources.ts';
import type { KubeObject } from './types.ts';
import { type WatchEvent, type WatchQuery, watchWithRetries } from './watch.ts';

export interface Selection {
  readonly namespace?: string | undefined;
  readonly labelSelector?: string | undefined;
  readonly fieldSelector?: string | undefined;
}

export interface ListQuery extends Selection {
  /** In a page; the API server may give fewer, and more follow. */
  readonly limit?: number;
}

/** Of a list that is taken in parts. All pages show the same moment. */
export interface Page<T> {
  readonly items: readonly T[];
  /** Of that moment: what is watched from there on misses nothing. */
  readonly resourceVersion: string;
}

export interface DeleteOptions {
  /** Only the object that has it: not another of the same name. */
  readonly uid?: string | undefined;
  readonly resourceVersion?: string | undefined;
  readonly graceSeconds?: number;
  readonly propagation?: 'Background' | 'Foreground' | 'Orphan';
}

export type Patch =
  | { readonly kind: 'merge'; readonly body: object }
  | { readonly kind: 'json'; readonly body: readonly object[] }
  /** The fields that are named are ours from then on; with `force`, also those that were another's. */
  | { readonly kind: 'apply'; readonly body: object; readonly manager: string; readonly force?: boolean };

export interface RawCall {
  readonly method: ApiRequest['method'];
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: object;
}

/**
 * The Kubernetes API. Every call ends with its signal or its deadline, whichever comes first; every failure is a KubeError. No
 * call is repeated that may have changed something: `lost` and `deadline` leave open whether it has.
 */
export interface KubeClient extends Disposable {
  /** Where its user is at home. */
  readonly namespace: string;
  get<T extends KubeObject>(resource: Resource<T>, at: ObjectPath, signal: AbortSignal): Promise<T>;
  /** Page by page. 410 in the middle: the rest of that moment is gone, and it must be begun anew. */
  list<T extends KubeObject>(
    resource: Resource<T>,
    query: ListQuery,
    signal: AbortSignal,
  ): AsyncGenerator<Page<T>, void, undefined>;
  /** A name in `at` is only for parts: the object has its own. */
  create<T extends KubeObject>(resource: Resource<T>, object: T, signal: AbortSignal, at?: ObjectPath): Promise<T>;
  /** Replaces the object; with its resourceVersion only the one that was read. */
  update<T extends KubeObject>(
    resource: Resource<T>,
    object: T,
    signal: AbortSignal,
    subresource?: ObjectPath['subresource'],
  ): Promise<T>;
  patch<T extends KubeObject>(resource: Resource<T>, at: ObjectPath, patch: Patch, signal: AbortSignal): Promise<T>;
  delete(resource: Resource<KubeObject>, at: ObjectPath, options: DeleteOptions, signal: AbortSignal): Promise<void>;
  /** What changes from then on, however often the connection breaks. It ends when a new list is needed. */
  watch<T extends KubeObject>(
    resource: Resource<T>,
    query: WatchQuery,
    signal: AbortSignal,
  ): AsyncGenerator<WatchEvent<T>, void, undefined>;
  /** Of anything else, such as `/version`: the body as it is. */
  raw(call: RawCall, signal: AbortSignal): Promise<string>;
}

export interface KubeClientOptions {
  readonly access: KubeAccess;
  readonly clock: Clock;
  readonly userAgent: string;
  /** Calls at a time; watches have connections of their own. */
  readonly maxSockets?: number;
  /** Of every call when it has its answer, or none: `watch` for what goes on, the status, or how it failed. */
  readonly onResponse?: (call: { readonly verb: string; readonly code: string }) => void;
  /** From 0 to 1, for waits that are not to be the same everywhere. */
  readonly random?: () => number;
}

const mib = 1 << 20;
/** The API server itself gives up after a minute. */
const limitMs = 30_000;
const listMs = 60_000;
/** etcd holds objects of 1.5 MiB at most, which are less compact as JSON. */
const maxObject = 8 * mib;
const maxPage = 64 * mib;
const pageSize = 500;

const patchTypes = {
  merge: 'application/merge-patch+json',
  json: 'application/json-patch+json',
  apply: 'application/apply-patch+yaml',
} as const satisfies Record<Patch['kind'], string>;

export function createKubeClient(options: KubeClientOptions): KubeClient {
  const { access, clock, random = Math.random } = options;
  const http = createKubeHttp(options);

  async function ask<T>(out: Omit<ApiRequest, 'limitMs' | 'maxBytes'>, signal: AbortSignal): Promise<T> {
    return parsed(await http.request({ limitMs, maxBytes: maxObject, ...out }, signal), callOf(out)) as T;
  }

  async function* list<T extends KubeObject>(
    resource: Resource<T>,
    { namespace, labelSelector, fieldSelector, limit = pageSize }: ListQuery,
    signal: AbortSignal,
  ): AsyncGenerator<Page<T>, void, undefined> {
    const out = { method: 'GET', path: pathOf(resource, { namespace }), limitMs: listMs, maxBytes: maxPage } as const;
    let next: string | undefined;
    do {
      const query = { labelSelector, fieldSelector, limit: String(limit), continue: next };
      const page = parsePage<T>(parsed(await http.request({ ...out, query }, signal), callOf(out)), callOf(out));
      next = page.next;
      yield page;
    } while (next !== undefined);
  }

  return {
    namespace: access.namespace,
    list,
    get: (resource, at, signal) => ask({ method: 'GET', path: pathOf(resource, at) }, signal),
    create: (resource, object, signal, at = {}) => {
      const namespace = at.namespace ?? object.metadata.namespace;
      const path = pathOf(resource, { ...at, namespace });
      return ask({ method: 'POST', path, body: withType(resource, object) }, signal);
    },
    update: (resource, object, signal, subresource) => {
      const { namespace, name } = object.metadata;
      return ask(
        { method: 'PUT', path: pathOf(resource, { namespace, name, subresource }), body: withType(resource, object) },
        signal,
      );
    },
    patch: (resource, at, patch, signal) => {
      const body = patch.kind === 'apply' ? withType(resource, patch.body) : patch.body;
      const query =
        patch.kind === 'apply'
          ? { fieldManager: patch.manager, force: patch.force === true ? 'true' : undefined }
          : undefined;
      const out = { method: 'PATCH', path: pathOf(resource, at), body, contentType: patchTypes[patch.kind] } as const;
      return ask(query === undefined ? out : { ...out, query }, signal);
    },
    delete: async (resource, at, { uid, resourceVersion, graceSeconds, propagation }, signal) => {
      const body = {
        apiVersion: 'v1',
        kind: 'DeleteOptions',
        preconditions: { uid, resourceVersion },
        gracePeriodSeconds: graceSeconds,
        propagationPolicy: propagation,
      };
      await ask({ method: 'DELETE', path: pathOf(resource, at), body }, signal);
    },
    watch: (resource, query, signal) => watchWithRetries({ http, clock, random }, resource, query, signal),
    raw: (call, signal) => http.request({ limitMs, maxBytes: maxObject, ...call }, signal),
    [Symbol.dispose]: () => http[Symbol.dispose](),
  };
}

const withType = (resource: Resource<KubeObject>, object: object): object => ({
  apiVersion: apiVersionOf(resource),
  kind: resource.kind,
  ...object,
});

function parsePage<T>(answer: unknown, call: string): Page<T> & { readonly next: string | undefined } {
  const { items, metadata } = (answer ?? {}) as {
    readonly items?: readonly T[] | null;
    readonly metadata?: { readonly resourceVersion?: string; readonly continue?: string };
  };
  if (metadata?.resourceVersion === undefined || (items !== null && !Array.isArray(items)))
    throw garbled(call, 'the answer is not a list');
  return {
    items: items ?? [],
    resourceVersion: metadata.resourceVersion,
    next: metadata.continue === '' ? undefined : metadata.continue,
  };
}
