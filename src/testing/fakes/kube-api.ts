import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { KubeAccess } from '#wire/kube/access.ts';
import { type AnyObject, json, merged, patched } from './kube-objects.ts';

/** Returns true if it has answered the request instead of the API server. */
export type Interception = (request: IncomingMessage, response: ServerResponse, body: string) => boolean;

/** An API server in memory: objects of any kind, resource versions, pages, watches, conflicts, and faults. */
export interface FakeKubeApi extends AsyncDisposable {
  readonly access: KubeAccess;
  readonly port: number;
  /** Every request so far: `GET /api/v1/nodes?limit=500`. */
  readonly requests: string[];
  /** The number of open watches. */
  readonly watches: number;
  intercept: Interception | undefined;
  /** Answers with an error: a Status object, and further fields. */
  refuse(response: ServerResponse, code: number, reason: string, more?: Refusal): void;
  /** Writes an object as if a client had done so. */
  put(path: string, object: AnyObject): AnyObject;
  remove(path: string, name: string): void;
  /** Compacts the history: watches and lists from older resource versions expire. */
  compact(): void;
  bookmark(): void;
  /** Ends all watches. `isClean`: as the API server does on a timeout. */
  cutWatches(isClean: boolean): void;
  down(): Promise<void>;
  up(): Promise<void>;
}

interface Refusal {
  readonly message?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly details?: object;
}

interface Reply {
  readonly code: number;
  readonly value: unknown;
}

const errorReply = (code: number, reason: string, { message = reason, details }: Refusal = {}): Reply => ({
  code,
  value: { kind: 'Status', apiVersion: 'v1', status: 'Failure', code, reason, message, details },
});
const okReply = (value: unknown, code = 200): Reply => ({ code, value });

interface HistoryEntry {
  readonly version: number;
  readonly collection: string;
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED';
  readonly object: AnyObject;
}

interface Watcher {
  readonly path: string;
  readonly response: ServerResponse;
}

/** `/api/v1/namespaces/a/pods` and `/api/v1/pods` are the same collection. */
interface Address {
  readonly collection: string;
  readonly namespace: string | undefined;
  readonly name: string | undefined;
  readonly part: string | undefined;
}

function addressOf(path: string): Address {
  const found =
    /^(\/api\/v1|\/apis\/[^/]+\/[^/]+)(?:\/namespaces\/([^/]+))?\/([^/]+)(?:\/([^/]+))?(?:\/([^/]+))?$/.exec(path);
  const [, root = '', namespace, plural = '', name, part] = found ?? [];
  return { collection: `${root}/${plural}`, namespace, name, part };
}

export async function startKubeApi(): Promise<FakeKubeApi> {
  const objects = new Map<string, Map<string, AnyObject>>();
  const history: HistoryEntry[] = [];
  const watchers = new Set<Watcher>();
  const sockets = new Set<Socket>();
  const snapshots = new Map<string, { readonly rest: AnyObject[]; readonly version: number }>();
  const asked: string[] = [];
  let version = 100;
  let compacted = 100;

  const inCollection = (collection: string): Map<string, AnyObject> => {
    const known = objects.get(collection) ?? new Map<string, AnyObject>();
    objects.set(collection, known);
    return known;
  };
  const keyOf = (object: AnyObject): string => `${object.metadata.namespace ?? ''}/${object.metadata.name ?? ''}`;
  const sees = (watcher: Watcher, { collection, object }: HistoryEntry): boolean => {
    const at = addressOf(watcher.path);
    return at.collection === collection && (at.namespace === undefined || at.namespace === object.metadata.namespace);
  };
  const send = ({ response }: Watcher, type: string, object: unknown): void => {
    response.write(`${JSON.stringify({ type, object })}\n`);
  };

  function happen(collection: string, type: HistoryEntry['type'], given: AnyObject): AnyObject {
    version++;
    const object = { ...given, metadata: { ...given.metadata, resourceVersion: String(version) } };
    const happened = { version, collection, type, object };
    history.push(happened);
    if (type === 'DELETED') inCollection(collection).delete(keyOf(object));
    else inCollection(collection).set(keyOf(object), object);
    for (const watcher of watchers) if (sees(watcher, happened)) send(watcher, type, object);
    return object;
  }

  function put(path: string, object: AnyObject): AnyObject {
    const { collection, namespace } = addressOf(path);
    const fixed = namespace === undefined ? {} : { namespace };
    const metadata = { uid: randomUUID(), creationTimestamp: new Date(0).toISOString(), ...fixed, ...object.metadata };
    const known = inCollection(collection).get(keyOf({ metadata }));
    if (known === undefined) return happen(collection, 'ADDED', json({ ...object, metadata }));
    const { uid = '' } = known.metadata;
    return happen(collection, 'MODIFIED', json({ ...object, metadata: { ...metadata, uid } }));
  }

  function remove(path: string, name: string): void {
    const { collection, namespace } = addressOf(path);
    const found = inCollection(collection).get(`${namespace ?? ''}/${name}`);
    if (found !== undefined) happen(collection, 'DELETED', found);
  }

  const answer = (response: ServerResponse, { code, value }: Reply): void => {
    response.writeHead(code, { 'content-type': 'application/json' }).end(JSON.stringify(value));
  };
  const refuse: FakeKubeApi['refuse'] = (response, code, reason, { headers = {}, ...more } = {}) => {
    response.writeHead(code, { 'content-type': 'application/json', ...headers });
    response.end(JSON.stringify(errorReply(code, reason, more).value));
  };

  function list(at: Address, query: URLSearchParams): Reply {
    const limit = Number(query.get('limit') ?? '0') || Number.POSITIVE_INFINITY;
    const token = query.get('continue');
    const snapshot = token === null ? undefined : snapshots.get(token);
    if (token !== null && snapshot === undefined) return errorReply(410, 'Expired');
    const all =
      snapshot?.rest ??
      [...inCollection(at.collection).values()].filter(
        ({ metadata }) => at.namespace === undefined || at.namespace === metadata.namespace,
      );
    const moment = snapshot?.version ?? version;
    const next = all.length > limit ? randomUUID() : undefined;
    if (next !== undefined) snapshots.set(next, { rest: all.slice(limit), version: moment });
    return okReply({
      kind: 'List',
      metadata: { resourceVersion: String(moment), continue: next },
      items: all.slice(0, limit),
    });
  }

  function watch(path: string, query: URLSearchParams, response: ServerResponse): void {
    const from = Number(query.get('resourceVersion'));
    response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
    const watcher = { path, response };
    if (from < compacted) {
      const status = { kind: 'Status', status: 'Failure', code: 410, reason: 'Expired', message: 'too old' };
      send(watcher, 'ERROR', status);
      response.end();
      return;
    }
    for (const one of history) if (one.version > from && sees(watcher, one)) send(watcher, one.type, one.object);
    watchers.add(watcher);
    response.on('close', () => watchers.delete(watcher));
  }

  function create(path: string, body: string): Reply {
    const at = addressOf(path);
    const object = JSON.parse(body) as AnyObject;
    const { name = `${object.metadata.generateName ?? ''}${randomUUID().slice(0, 5)}` } = object.metadata;
    const fixed = at.namespace === undefined ? {} : { namespace: at.namespace };
    const named = { ...object, metadata: { ...object.metadata, name, ...fixed } };
    if (inCollection(at.collection).has(keyOf(named))) return errorReply(409, 'AlreadyExists');
    return okReply(put(path, named), 201);
  }

  function change(path: string, { method = '', headers }: IncomingMessage, body: string): Reply {
    const at = addressOf(path);
    const collectionPath = path
      .split('/')
      .slice(0, at.part === undefined ? -1 : -2)
      .join('/');
    const found = inCollection(at.collection).get(`${at.namespace ?? ''}/${at.name ?? ''}`);
    const type = headers['content-type'] ?? '';
    if (found === undefined && type.includes('apply-patch'))
      return okReply(put(collectionPath, JSON.parse(body) as AnyObject), 201);
    if (found === undefined) return errorReply(404, 'NotFound', { message: `${at.name ?? ''} not found` });
    if (method === 'GET') return okReply(found);
    const given = JSON.parse(body) as AnyObject & { readonly preconditions?: AnyObject['metadata'] };
    const wanted = method === 'DELETE' ? given.preconditions : given.metadata;
    for (const field of ['uid', 'resourceVersion'] as const) {
      if (wanted?.[field] !== undefined && wanted[field] !== found.metadata[field])
        return errorReply(409, 'Conflict', { message: `${field} differs` });
    }
    if (method !== 'DELETE') {
      const isJsonPatch = type.includes('json-patch');
      const next = method === 'PUT' ? given : isJsonPatch ? patched(found, JSON.parse(body)) : merged(found, given);
      const { metadata } = next as AnyObject;
      // The object was waiting for its finalizers only.
      if (metadata.deletionTimestamp !== undefined && (metadata.finalizers ?? []).length === 0)
        return okReply(happen(at.collection, 'DELETED', next as AnyObject));
      return okReply(put(collectionPath, next as AnyObject));
    }
    if ((found.metadata.finalizers ?? []).length === 0) happen(at.collection, 'DELETED', found);
    else
      put(collectionPath, { ...found, metadata: { ...found.metadata, deletionTimestamp: new Date(0).toISOString() } });
    return okReply({ kind: 'Status', status: 'Success' });
  }

  function handle(request: IncomingMessage, response: ServerResponse, body: string): void {
    const url = new URL(request.url ?? '/', 'http://fake');
    asked.push(`${request.method ?? ''} ${request.url ?? ''}`);
    if (fake.intercept?.(request, response, body) === true) return;
    const path = decodeURIComponent(url.pathname);
    const at = addressOf(path);
    if (path === '/version') answer(response, okReply({ major: '1', minor: '35' }));
    else if (at.name !== undefined) answer(response, change(path, request, body));
    else if (request.method === 'POST') answer(response, create(path, body));
    else if (url.searchParams.get('watch') === 'true') watch(path, url.searchParams, response);
    else answer(response, list(at, url.searchParams));
  }

  let server: Server;
  let port = 0;
  const up = async (): Promise<void> => {
    server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => handle(request, response, Buffer.concat(chunks).toString('utf8')));
    }).on('connection', (socket) => {
      sockets.add(socket);
      socket.on('close', () => sockets.delete(socket));
    });
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    ({ port } = server.address() as AddressInfo);
  };
  const down = async (): Promise<void> => {
    if (!server.listening) return;
    const closed = once(server, 'close');
    server.close();
    for (const socket of sockets) socket.resetAndDestroy();
    await closed;
  };
  await up();
  const fake: FakeKubeApi = {
    access: {
      get server() {
        return new URL(`http://127.0.0.1:${port}`);
      },
      namespace: 'default',
      identity: () => Promise.resolve(identity),
    },
    get port() {
      return port;
    },
    get watches() {
      return watchers.size;
    },
    intercept: undefined,
    requests: asked,
    refuse,
    put,
    remove,
    up,
    down,
    [Symbol.asyncDispose]: down,
    compact: () => {
      version++;
      compacted = version;
      history.length = 0;
      snapshots.clear();
    },
    bookmark: () => {
      version++;
      for (const one of watchers) send(one, 'BOOKMARK', { metadata: { resourceVersion: String(version) } });
    },
    cutWatches: (isClean) => {
      for (const { response } of watchers) {
        if (isClean) response.end();
        else response.socket?.destroy();
      }
    },
  };
  const identity = { authorization: 'Bearer secret-token', tls: {} };
  return fake;
}
