import type { Clock } from '#base/clock.ts';
import type { KubeAccess } from './access.ts';
import { garbledError, parseBody } from './errors.ts';
import { type ApiRequest, callOf, createKubeHttp } from './http.ts';
import { apiVersionOf, type ObjectPath, pathOf, type Resource } from './resources.ts';
import type { KubeObject } from './types.ts';
import { type WatchEvent, type WatchQuery, watchWithRetries } from './watch.ts';

export interface ObjectSelection {
  readonly namespace?: string | undefined;
  readonly labelSelector?: string | undefined;
  readonly fieldSelector?: string | undefined;
}

export interface ListQuery extends ObjectSelection {
  /** The size of a page; the API server may return fewer, although more follow. */
  readonly limit?: number;
}

/** One page of a list. All pages show the same snapshot. */
export interface Page<T> {
  readonly items: readonly T[];
  /** The version of the snapshot: a watch from here misses nothing. */
  readonly resourceVersion: string;
}

export interface DeleteOptions {
  /** Delete only the object with this uid, not a newer object of the same name. */
  readonly uid?: string | undefined;
  readonly resourceVersion?: string | undefined;
  readonly graceSeconds?: number;
  readonly propagation?: 'Background' | 'Foreground' | 'Orphan';
}

export type Patch =
  | { readonly kind: 'merge'; readonly body: object }
  | { readonly kind: 'json'; readonly body: readonly object[] }
  /** Server-side apply: the manager owns these fields afterwards. `force` also takes fields from other managers. */
  | { readonly kind: 'apply'; readonly body: object; readonly manager: string; readonly force?: boolean };

export interface RawCall {
  readonly method: ApiRequest['method'];
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: object;
}

/**
 * The Kubernetes API. Every call ends with its signal or its deadline, whichever comes first. Every failure is a KubeError. The
 * client does not repeat calls that may have changed something: after `lost` and `deadline` the outcome is unknown.
 */
export interface KubeClient extends Disposable {
  /** The default namespace. */
  readonly namespace: string;
  get<T extends KubeObject>(resource: Resource<T>, at: ObjectPath, signal: AbortSignal): Promise<T>;
  /** Lists page by page. 410 during the list: the snapshot has expired, and the list must start again. */
  list<T extends KubeObject>(
    resource: Resource<T>,
    query: ListQuery,
    signal: AbortSignal,
  ): AsyncGenerator<Page<T>, void, undefined>;
  /** A name in `at` is only for subresources: an object has its name in its metadata. */
  create<T extends KubeObject>(resource: Resource<T>, object: T, signal: AbortSignal, at?: ObjectPath): Promise<T>;
  /** Replaces the object. If it has a resourceVersion, the API server refuses to replace a newer version. */
  update<T extends KubeObject>(
    resource: Resource<T>,
    object: T,
    signal: AbortSignal,
    subresource?: ObjectPath['subresource'],
  ): Promise<T>;
  patch<T extends KubeObject>(resource: Resource<T>, at: ObjectPath, patch: Patch, signal: AbortSignal): Promise<T>;
  delete(resource: Resource<KubeObject>, at: ObjectPath, options: DeleteOptions, signal: AbortSignal): Promise<void>;
  /** Yields all later changes, and reconnects when the connection breaks. Ends when a new list is needed. */
  watch<T extends KubeObject>(
    resource: Resource<T>,
    query: WatchQuery,
    signal: AbortSignal,
  ): AsyncGenerator<WatchEvent<T>, void, undefined>;
  /** For other paths such as `/version`: returns the body. */
  raw(call: RawCall, signal: AbortSignal): Promise<string>;
}

export interface KubeClientOptions {
  readonly access: KubeAccess;
  readonly clock: Clock;
  readonly userAgent: string;
  /** The limit on concurrent calls; watches have connections of their own. */
  readonly maxSockets?: number;
  /**
   * Called for every call when it has a response or has failed. `verb` is `watch` for watches; `code` is the status or the
   * failure.
   */
  readonly onResponse?: (call: { readonly verb: string; readonly code: string }) => void;
  /** From 0 to 1, for jitter. */
  readonly random?: () => number;
}

const mib = 1 << 20;
/** The API server itself times out after a minute. */
const defaultCallMs = 30_000;
const listCallMs = 60_000;
/** etcd limits objects to 1.5 MiB; as JSON they are larger. */
const maxObjectBytes = 8 * mib;
const maxPageBytes = 64 * mib;
const defaultPageSize = 500;

const patchTypes = {
  merge: 'application/merge-patch+json',
  json: 'application/json-patch+json',
  apply: 'application/apply-patch+yaml',
} as const satisfies Record<Patch['kind'], string>;

export function createKubeClient(options: KubeClientOptions): KubeClient {
  const { access, clock, random = Math.random } = options;
  const http = createKubeHttp(options);

  async function request<T>(out: Omit<ApiRequest, 'timeoutMs' | 'maxBytes'>, signal: AbortSignal): Promise<T> {
    return parseBody(
      await http.request({ timeoutMs: defaultCallMs, maxBytes: maxObjectBytes, ...out }, signal),
      callOf(out),
    ) as T;
  }

  async function* list<T extends KubeObject>(
    resource: Resource<T>,
    { namespace, labelSelector, fieldSelector, limit = defaultPageSize }: ListQuery,
    signal: AbortSignal,
  ): AsyncGenerator<Page<T>, void, undefined> {
    const out = {
      method: 'GET',
      path: pathOf(resource, { namespace }),
      timeoutMs: listCallMs,
      maxBytes: maxPageBytes,
    } as const;
    let next: string | undefined;
    do {
      const query = { labelSelector, fieldSelector, limit: String(limit), continue: next };
      const page = parsePage<T>(parseBody(await http.request({ ...out, query }, signal), callOf(out)), callOf(out));
      next = page.next;
      yield page;
    } while (next !== undefined);
  }

  return {
    namespace: access.namespace,
    list,
    get: (resource, at, signal) => request({ method: 'GET', path: pathOf(resource, at) }, signal),
    create: (resource, object, signal, at = {}) => {
      const namespace = at.namespace ?? object.metadata.namespace;
      const path = pathOf(resource, { ...at, namespace });
      return request({ method: 'POST', path, body: withType(resource, object) }, signal);
    },
    update: (resource, object, signal, subresource) => {
      const { namespace, name } = object.metadata;
      return request(
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
      return request(query === undefined ? out : { ...out, query }, signal);
    },
    delete: async (resource, at, { uid, resourceVersion, graceSeconds, propagation }, signal) => {
      const body = {
        apiVersion: 'v1',
        kind: 'DeleteOptions',
        preconditions: { uid, resourceVersion },
        gracePeriodSeconds: graceSeconds,
        propagationPolicy: propagation,
      };
      await request({ method: 'DELETE', path: pathOf(resource, at), body }, signal);
    },
    watch: (resource, query, signal) => watchWithRetries({ http, clock, random }, resource, query, signal),
    raw: (call, signal) => http.request({ timeoutMs: defaultCallMs, maxBytes: maxObjectBytes, ...call }, signal),
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
    throw garbledError(call, 'the answer is not a list');
  return {
    items: items ?? [],
    resourceVersion: metadata.resourceVersion,
    next: metadata.continue === '' ? undefined : metadata.continue,
  };
}
