import { once } from 'node:events';
import { mkdir, mkdtempDisposable } from 'node:fs/promises';
import { Agent } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { createClusterNodes } from '#cluster/nodes/cluster-nodes.ts';
import type { NodeApis, NodeRequest } from '#cluster/nodes/node-apis.ts';
import type { PodLocation } from '#cluster/pods/pod-location.ts';
import { findAgentCall } from '#cluster/tunnel/agent-calls.ts';
import { relayed, StowageError } from '#core/errors.ts';
import { type Api, createApi, startServer, type TestServer } from '#testing/server.ts';
import type { Access } from './access.ts';
import type { ExternalAuthorizer } from './admission.ts';
import { createRestServer, type RestServer } from './server.ts';

/** The nodes are real servers; the controller has a store of its own. */
let controller: TestServer;
let agents: Map<string, TestServer>;
let rest: RestServer;
let api: Api;
const connections = new Agent({ keepAlive: true });
let silent: Set<string>;
let asked: { readonly access: Access; readonly subject: string | undefined }[];
let sent: { readonly node: string; readonly request: NodeRequest }[];
/** Overrides answers of agents, as if they had another version. */
let adapted: (node: string, body: unknown) => unknown;
/** Answers of agents, instead of those of their servers. */
let answers: ((request: NodeRequest) => unknown) | undefined;
/** Whether the caller may see store addresses. */
let informed: boolean;
let lookups: number;
/** The node and address of a pod. */
let located: (pod: string) => PodLocation | undefined;
let allows: (access: Access, subject: string | undefined) => boolean;

const guard: ExternalAuthorizer = {
  admit: async (headers, access, subject) => {
    asked.push({ access, subject });
    if (headers['authorization'] === undefined)
      throw new StowageError('who?', { code: 'unauthenticated', reason: 'token-missing', action: '' });
    if (!allows(access, subject))
      throw new StowageError('no', { code: 'denied', reason: 'rule-missing', action: 'Ask.' });
    return { id: 'user:me', role: 'user', informed, stores: [] };
  },
};

const apis: NodeApis = {
  names: () => [...agents.keys()],
  ask: async (node, request) => {
    sent.push({ node, request });
    if (silent.has(node))
      throw new StowageError(`the agent of ${node} is not connected`, {
        code: 'unavailable',
        reason: 'agent-absent',
        action: '',
      });
    if (answers !== undefined) return answers(request);
    const { requestId, method, path, body } = request;
    // Like agents.
    if (findAgentCall(method, path) === undefined) throw new TypeError(`agents do not accept ${method} ${path}`);
    const headers: Record<string, string> = requestId === undefined ? {} : { 'idempotency-key': requestId };
    const answer = await (agents.get(node) as TestServer).admin.call(method, path, { body, headers });
    if (answer.status < 400) return adapted(node, answer.body);
    const { code, reason, detail, action } = answer.body;
    throw new StowageError(detail, { code, reason, action });
  },
  pod: async ({ namespace, name }) => {
    lookups++;
    return located(`${namespace}/${name}`);
  },
};

beforeAll(async () => {
  controller = await startServer();
  await controller.admin.post('/v1/volumes', { name: 'shared-1' });
  await controller.admin.post('/v1/volumes', { name: 'shared-2' });
  agents = new Map();
  for (const name of ['node-b', 'node-a', 'node-c']) agents.set(name, await startServer());
  for (const [name, { admin }] of agents)
    for (const volume of [`of-${name}`, 'same']) await admin.post('/v1/volumes', { name: volume, bytes: '1048576' });
  rest = createRestServer({
    core: controller.core,
    clock: systemClock(),
    log: silentLog(),
    version: '0',
    authorizer: guard,
    nodes: createClusterNodes(apis),
    signal: new AbortController().signal,
    isReady: () => true,
    status: async () => (await controller.admin.get('/v1/status')).body,
    doctor: async () => [],
    dataPaths: { list: async () => [], upgrade: async () => [] },
  });
  await rest.ready();
  rest.remote.listen(0, '127.0.0.1');
  await once(rest.remote, 'listening');
  const { port } = rest.remote.address() as AddressInfo;
  api = createApi({ host: '127.0.0.1', port, agent: connections }, 'anything');
}, 60_000);
afterAll(async () => {
  connections.destroy();
  await rest.close(0);
  for (const one of [controller, ...agents.values()]) await one[Symbol.asyncDispose]();
}, 60_000);
beforeEach(() => {
  silent = new Set();
  asked = [];
  sent = [];
  adapted = (_node, body) => body;
  allows = () => true;
  answers = undefined;
  located = (pod) => ({ uid: `uid-${pod}`, node: 'node-b', address: '10.244.1.5', hostNetwork: false });
  lookups = 0;
  informed = false;
});

const documented = async (): Promise<readonly { readonly method: string; readonly path: string }[]> => {
  const { paths } = (await api.get('/openapi.json')).body;
  return Object.entries<object>(paths).flatMap(([path, item]) =>
    Object.keys(item).map((method) => ({ method: method.toUpperCase(), path })),
  );
};

describe('the authorizer', () => {
  test("is asked first for every route, and Stowage's own tokens are not accepted", async () => {
    allows = () => false;
    const all = (await documented()).filter(({ path }) => !['/healthz', '/readyz', '/openapi.json'].includes(path));
    expect(all.length).toBeGreaterThan(30);
    const { body: made } = await controller.admin.post('/v1/tokens', { name: 'admin', role: 'admin' });
    const headers = { authorization: `Bearer ${made.secret}` };
    for (const { method, path } of all) {
      const { status, body } = await api.call(method, path.replaceAll(/\{\w+\}/g, 'nope'), { headers });
      expect([method, path, status, body.reason]).toEqual([
        method,
        path,
        ...(status === 422 ? [422, 'not-in-a-cluster'] : [403, 'rule-missing']),
      ]);
    }
    expect((await api.get('/healthz')).status).toBe(200);
  });

  test('gets the object of the request', async () => {
    await api.get('/v1/volumes/local..shared-1');
    await api.get('/v1/stores/local');
    await api.get('/v1/volumes');
    await api.get('/metrics');
    expect(asked).toEqual([
      { access: { resource: 'volumes', verb: 'get' }, subject: 'local..shared-1' },
      { access: { resource: 'stores', verb: 'get' }, subject: 'local' },
      { access: { resource: 'volumes', verb: 'list' }, subject: undefined },
      { access: { path: '/metrics', verb: 'get' }, subject: undefined },
    ]);
  });

  test('is asked again for the right to cancel an operation', async () => {
    const { body } = await controller.admin.get('/v1/operations');
    const { id } = body.items.find((one: { kind: string }) => one.kind === 'volume.create');
    allows = (access) => 'resource' in access && access.resource === 'operations';
    expect((await api.post(`/v1/operations/${id}/cancel`)).status).toBe(403);
    allows = () => true;
    expect((await api.post(`/v1/operations/${id}/cancel`)).status).toBe(200);
  });

  test('stops an event stream after the reader lost its right', async () => {
    using stream = await api.follow();
    await stream.until('hello');
    allows = () => false;
    // A new decision takes effect at the next check.
    for (let n = 0; n < 3; n++) await controller.admin.post('/v1/volumes', { name: `seen-${n}` });
    for (let event = await stream.next(); event !== undefined; event = await stream.next());
    for (let n = 0; n < 3; n++) await controller.admin.delete(`/v1/volumes/seen-${n}`);
  });
});

describe('resources of nodes', () => {
  const names = (body: { items: readonly { name: string; node?: string }[] }): readonly string[] =>
    body.items.map(({ name, node }) => (node === undefined ? name : `${name} on ${node}`));
  const everything = [
    'shared-1',
    'shared-2',
    ...['node-a', 'node-b', 'node-c'].flatMap((node) => [`of-${node} on ${node}`, `same on ${node}`]),
  ];

  test('lists the volumes of shared stores, then those of each node', async () => {
    const { body } = await api.get('/v1/volumes');
    expect([names(body), body.next, body.unreached]).toEqual([everything, null, []]);
  });

  test('users cannot change ownLabels, here or on a node', async () => {
    for (const volume of ['local..shared-1', 'of-node-a']) {
      const body = { ownLabels: { 'stowage.dev/claim-uid': 'mine' } };
      const { status, body: said } = await api.call('PATCH', `/v1/volumes/${volume}`, { body });
      expect([status, said.code]).toEqual([403, 'denied']);
    }
    expect(sent.filter(({ request }) => request.method === 'PATCH')).toEqual([]);
  });

  test.each([1, 2, 3, 5, 7])('lists each volume once in pages of %i', async (limit) => {
    const found: string[] = [];
    let after: string | null = null;
    do {
      const query: string = after === null ? '' : `&after=${encodeURIComponent(after)}`;
      const { status, body } = await api.get(`/v1/volumes?limit=${limit}${query}`);
      expect(status).toBe(200);
      expect(body.items.length).toBeLessThanOrEqual(limit);
      found.push(...names(body));
      after = body.next;
    } while (after !== null);
    expect(found).toEqual(everything);
  });

  test('filters volumes by name and store, and reports an unknown store', async () => {
    expect(names((await api.get('/v1/volumes?contains=of-node')).body)).toHaveLength(3);
    expect(names((await api.get('/v1/volumes?store=local')).body)).toEqual(['shared-1', 'shared-2']);
    expect((await api.get('/v1/volumes?store=nope')).body).toMatchObject({ status: 404, reason: 'store-unknown' });
  });

  test('names a node that cannot be reached, and lists the others', async () => {
    silent.add('node-b');
    const { body } = await api.get('/v1/volumes');
    expect(names(body)).toEqual(everything.filter((name) => !name.endsWith('node-b')));
    expect(body.unreached).toMatchObject([{ node: 'node-b', reason: 'agent-absent' }]);
    for (const path of ['/v1/mounts', '/v1/client', '/v1/doctor', '/v1/stores', '/v1/troubles'])
      expect((await api.get(path)).body.unreached).toMatchObject([{ node: 'node-b' }]);
  });

  test('names the node of each item in a list', async () => {
    const { body } = await api.get('/v1/doctor');
    expect(new Set(body.items.map(({ node }: { node: string }) => node))).toEqual(new Set(agents.keys()));
    expect((await api.get('/v1/doctor?after=node-b')).body.items[0].node).toBe('node-c');
  });

  test('shows, expands and deletes a volume on the node that has it', async () => {
    const shown = await api.get('/v1/volumes/of-node-a');
    expect(shown).toMatchObject({ status: 200, body: { name: 'of-node-a', node: 'node-a', condition: 'ok' } });
    const grown = await api.post(
      '/v1/volumes/of-node-a/expand',
      { bytes: '2097152' },
      { 'idempotency-key': 'one two'.replace(' ', '-') },
    );
    expect(grown).toMatchObject({ status: 200, body: { bytes: '2097152', node: 'node-a' } });
    expect((await api.get('/v1/volumes/of-node-a/usage')).status).toBe(200);
    expect((await api.delete('/v1/volumes/of-node-a', { 'if-match': '"1"' })).body.reason).toBe(
      'condition-unsupported',
    );
    expect((await api.delete('/v1/volumes/of-node-a')).body).toMatchObject({ outcome: 'deleted' });
    await agents.get('node-a')?.admin.post('/v1/volumes', { name: 'of-node-a', bytes: '1048576' });
  });

  test('requires the id of a volume that several nodes have, and reports a volume that no node has', async () => {
    const { body } = await api.get('/v1/volumes/same');
    expect(body).toMatchObject({
      status: 409,
      reason: 'volume-ambiguous',
      detail: "several nodes have a volume 'same': node-a, node-b, node-c",
    });
    const [, id] = /(sv1-\S+) on node-a/.exec(body.action) ?? [];
    expect((await api.get(`/v1/volumes/${id}`)).body).toMatchObject({ node: 'node-a', name: 'same' });
    expect((await api.get('/v1/volumes/nope')).status).toBe(404);
  });

  test('does not report "not found" while a node does not answer', async () => {
    silent.add('node-c');
    expect((await api.get('/v1/volumes/nope')).body).toMatchObject({
      status: 503,
      reason: 'volume-lookup-incomplete',
      detail: "volume 'nope' was not found, but not every node could be asked: node-c",
    });
  });

  test('asks nodes only for the mounts of a volume on a shared store', async () => {
    const { body } = await api.get('/v1/volumes/shared-1');
    expect(body).toMatchObject({ name: 'shared-1', mounts: [], users: [], unreached: [] });
    expect(new Set(sent.map(({ request }) => request.path))).toEqual(new Set([`/v1/mounts?volume=${body.id}`]));
  });

  test('says which requests about a node-local store only its agent can answer', async () => {
    await using places = await mkdtempDisposable(join(tmpdir(), 'stowage-disks-'));
    for (const [node, { admin }] of agents) {
      await mkdir(join(places.path, node));
      await admin.post('/v1/stores', { name: 'disks', uri: `local://${join(places.path, node)}` });
    }
    const refused = { status: 422, reason: 'store-of-nodes' };
    expect((await api.post('/v1/stores/disks/check')).body).toMatchObject(refused);
    expect((await api.post('/v1/volumes', { name: 'x', store: 'disks' })).body).toMatchObject(refused);
    expect((await api.post('/v1/volumes', { name: 'x', store: 'nope' })).body).toMatchObject({ status: 404 });
    expect((await api.get('/v1/stores/disks')).body).toMatchObject({ name: 'disks', nodes: [{}, {}, {}] });
    for (const { admin } of agents.values()) await admin.delete('/v1/stores/disks');
  });

  test('merges node-local stores of one name, and lists their nodes', async () => {
    // The controller of a cluster has no store of that name.
    const { body } = await api.get('/v1/stores');
    const joined = body.items.find(({ nodes: on }: { nodes?: unknown }) => on !== undefined);
    expect(joined).toMatchObject({ name: 'local', reach: 'node', state: 'open', volumes: 6, bytes: '6291456' });
    expect(joined.nodes.map(({ node }: { node: string }) => node)).toEqual(['node-a', 'node-b', 'node-c']);
    expect(joined).toMatchObject({ totalBytes: expect.any(String), freeBytes: expect.any(String) });
  });

  test('lists stores when the agent of one node is older and does not report free space', async () => {
    adapted = (node, body) =>
      node === 'node-b'
        ? JSON.parse(JSON.stringify(body, (key, value) => (/^(total|free)Bytes$/.test(key) ? undefined : value)))
        : body;
    const { status, body } = await api.get('/v1/stores');
    expect(status).toBe(200);
    const joined = body.items.find(({ nodes: on }: { nodes?: unknown }) => on !== undefined);
    expect(joined).toMatchObject({ name: 'local', volumes: 6, totalBytes: null, freeBytes: null });
    expect(joined.nodes).toHaveLength(3);
  });
});

describe('a check from the network of a pod', () => {
  const check = (from: string, store = 'local') => api.post(`/v1/stores/${store}/check`, { from });
  const path = '/v1/stores/local/check';
  const answer = (from: string | undefined): object => ({
    store: 'local',
    ok: true,
    steps: [],
    totalBytes: null,
    freeBytes: null,
    ...(from === undefined ? {} : { from }),
  });
  const fromIn = ({ body }: NodeRequest): string => (body as { readonly from: string }).from;
  /** The agent's answer: a check whose last step failed. */
  const failing = (step: object) => (request: NodeRequest) => ({
    ...answer(fromIn(request)),
    ok: false,
    steps: [step],
  });
  const failed = {
    step: 'connect',
    ok: false,
    detail: 'no answer from filer.example:2049',
    action: 'Ask filer.example.',
  };
  const permissions = (): readonly unknown[] => asked.map(({ access }) => access);

  test("is done by the agent of the pod's node, at the pod's address", async () => {
    answers = (request) => answer(fromIn(request));
    expect(await check('pod:shop/web-0')).toMatchObject({
      status: 200,
      body: { store: 'local', ok: true, from: 'pod:shop/web-0' },
    });
    expect(sent).toEqual([
      { node: 'node-b', request: { method: 'POST', path, body: { from: 'pod-address:10.244.1.5' } } },
    ]);
    expect(permissions()).toEqual([
      { resource: 'stores/check', verb: 'create' },
      { resource: 'stores/check', verb: 'update' },
      { pod: { namespace: 'shop', name: 'web-0' }, verb: 'get' },
    ]);
  });

  test('tells the agent if the pod has the network of the node', async () => {
    answers = (request) => answer(fromIn(request));
    located = () => ({ uid: 'u', node: 'node-a', address: '192.0.2.7', hostNetwork: true });
    expect(await check('pod:shop/web-0')).toMatchObject({ status: 200 });
    expect(sent.map(({ request }) => request.body)).toEqual([{ from: 'pod-address:host' }]);
  });

  test('needs the right to check from other places: without it, no pod is looked up and no agent is asked', async () => {
    allows = (access) => access.verb !== 'update';
    expect(await check('pod:shop/web-0')).toMatchObject({ status: 403, body: { reason: 'rule-missing' } });
    expect([lookups, sent]).toEqual([0, []]);
    expect((await api.post(path)).status).toBe(200);
  });

  test('gives the same error for an unknown pod and for one that the caller may not read, and asks no agent', async () => {
    allows = (access) => !('pod' in access) || access.pod.namespace !== 'secret';
    located = () => undefined;
    const unknown = (pod: string, namespace: string) => ({
      status: 404,
      body: {
        code: 'not-found',
        reason: 'pod-unknown',
        detail: `pod '${pod}' not found, or you are not allowed to read it`,
        action: `List the pods: kubectl get pods --namespace ${namespace}. The account of the check needs the verb 'get' for pods in this namespace.`,
      },
    });
    expect(await check('pod:shop/web-0')).toMatchObject(unknown('shop/web-0', 'shop'));
    expect(lookups).toBe(1);
    expect(await check('pod:secret/web-0')).toMatchObject(unknown('secret/web-0', 'secret'));
    expect([lookups, sent]).toEqual([1, []]);
  });

  test('hides the details from a caller who may not know how stores are reached', async () => {
    answers = failing({ ...failed, reason: 'nfs-no-answer' });
    const { body } = await check('pod:shop/web-0');
    expect(body).toMatchObject({ ok: false, steps: [{ step: 'connect', ok: false, detail: 'this step failed' }] });
    expect(JSON.stringify(body)).not.toContain('filer.example');
    informed = true;
    expect((await check('pod:shop/web-0')).body.steps).toEqual([{ ...failed, reason: 'nfs-no-answer' }]);
  });

  test('tells every caller that access was denied', async () => {
    answers = failing({ ...failed, reason: 'nfs-export-denied' });
    expect((await check('pod:shop/web-0')).body.steps).toEqual([
      {
        step: 'connect',
        ok: false,
        reason: 'nfs-export-denied',
        detail: 'access to the store is denied: this is a permission problem, not a network problem',
        action: 'Ask the administrator, who finds out why with: stowage store check local',
      },
    ]);
  });

  test('tells every caller that agents cannot see the networks of pods, and what to do', async () => {
    const hidden = {
      step: 'network',
      ok: false,
      reason: 'pod-networks-hidden',
      detail: 'the agent cannot see them',
      action: 'Ask the administrator.',
    };
    answers = failing(hidden);
    expect((await check('pod:shop/web-0')).body.steps).toEqual([hidden]);
  });

  test.each([
    ['agent-lost', 'unavailable', 'the connection to the agent of the node was lost before it answered'],
    ['agent-no-answer', 'deadline', 'the agent of the node did not answer in time'],
  ] as const)('does not blame the store for %s', async (reason, code, detail) => {
    answers = () => {
      throw relayed('no answer from node-b at 192.0.2.7', { code, reason, action: '' });
    };
    expect((await check('pod:shop/web-0')).body).toMatchObject({ code, reason, detail });
  });

  test('tells every caller that Kubernetes could not be asked about the pod', async () => {
    located = () => {
      throw new StowageError('it was not asked', { code: 'unavailable', reason: 'pod-unasked', action: 'Try again.' });
    };
    const { body } = await check('pod:shop/web-0');
    expect(body).toMatchObject({ reason: 'pod-unasked', detail: 'it was not asked', action: 'Try again.' });
  });

  test('is refused if the agent is too old to know pods', async () => {
    answers = () => answer(undefined);
    expect(await check('pod:shop/web-0')).toMatchObject({ status: 422, body: { reason: 'agent-too-old' } });
  });

  test.each([
    ['nothing', undefined],
    ['no steps', { store: 'local', ok: true, totalBytes: null, freeBytes: null }],
    ['a step of another shape', { ...answer('pod-address:10.244.1.5'), steps: [{ step: 'x', ok: 'yes' }] }],
    ['an invalid size', { ...answer('pod-address:10.244.1.5'), freeBytes: 'much' }],
    ['an invalid reason', { ...answer('pod-address:10.244.1.5'), steps: [{ ...failed, reason: '<b>' }] }],
  ])('says so if the agent answers %s', async (_, body) => {
    answers = () => body;
    expect(await check('pod:shop/web-0')).toMatchObject({
      status: 500,
      body: { reason: 'agent-answer-unreadable', action: expect.stringContaining("in the server's log") },
    });
  });

  test("passes on the known fields of the agent's answer, and leaves out those of later versions", async () => {
    informed = true;
    const step = { ...failed, step: 'a\u001b[2J', detail: 'x'.repeat(10_000), more: 1 };
    answers = (request) => ({ ...answer(fromIn(request)), more: 1, steps: Array.from({ length: 1_000 }, () => step) });
    const { body } = await check('pod:shop/web-0');
    expect(body.steps).toHaveLength(64);
    expect(body.steps[0]).toEqual({ ...failed, step: 'a\\u{1b}[2J', detail: 'x'.repeat(4_096) });
  });

  test.each([
    ['was replaced', { uid: 'other' }],
    ['moved to another node', { node: 'node-a' }],
    ['got another address', { address: '10.244.1.6' }],
  ])('is refused where the pod %s during the check', async (_, change) => {
    answers = (request) => answer(fromIn(request));
    located = () => ({
      uid: 'uid',
      node: 'node-b',
      address: '10.244.1.5',
      hostNetwork: false,
      ...(lookups > 1 ? change : {}),
    });
    expect(await check('pod:shop/web-0')).toMatchObject({ status: 409, body: { reason: 'pod-replaced' } });
  });

  test('is refused if the pod was deleted during the check', async () => {
    answers = (request) => answer(fromIn(request));
    const { located: before } = { located };
    located = (pod) => (lookups > 1 ? undefined : before(pod));
    expect(await check('pod:shop/web-0')).toMatchObject({ status: 409, body: { reason: 'pod-replaced' } });
  });

  test('asks no agent about a store that does not exist', async () => {
    expect((await check('pod:shop/web-0', 'nope')).body).toMatchObject({ reason: 'store-unknown' });
    expect(sent.filter(({ request }) => request.method === 'POST')).toEqual([]);
  });

  test.each(['pod:web-0', 'pod:shop/', 'pod:/web-0', 'pod:Shop/web-0', 'pod:shop/a/b', 'pod-address:local'])(
    'refuses %s as malformed',
    async (from) => {
      expect(await check(from)).toMatchObject({ status: 400 });
      expect(sent).toEqual([]);
    },
  );

  test.each(['container:web', 'netns:blue', 'docker:apps', 'web', 'pod-address:10.0.0.1', 'pod-address:host'])(
    'is the only kind of check with "from" in a cluster: %s is refused',
    async (from) => {
      expect(await check(from)).toMatchObject({ status: 422, body: { reason: 'check-only-from-pods' } });
    },
  );

  test('is refused outside a cluster, with the command that does it', async () => {
    expect(await controller.admin.post(path, { from: 'pod:shop/web-0' })).toMatchObject({
      status: 422,
      body: {
        reason: 'pods-unknown',
        action:
          'Ask the controller of the cluster: kubectl stowage store check local --account ACCOUNT --from pod:shop/web-0',
      },
    });
  });
});
