import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import type { ClusterAddress, ClusterOptions } from './cluster-connection.ts';
import { commandTree } from './command-tree.ts';
import { createProgram } from './program.ts';
import { type CommandResult, page, run, store, volume } from './scripted-server.ts';

interface ReceivedRequest {
  readonly request: string;
  readonly headers: IncomingHttpHeaders;
}

const prefix = '/api/v1/namespaces/stowage-system/services/https:stowage:443/proxy';

/** `kubectl stowage` with an API server whose proxy has scripted answers. */
async function cluster(script: Readonly<Record<string, readonly [status: number, body?: unknown]>>) {
  const seen: ReceivedRequest[] = [];
  const given: ClusterOptions[] = [];
  const server = createServer((request, answer) => {
    const { method, url = '', headers } = request;
    seen.push({ request: `${method} ${url}`, headers });
    const [status, body] = script[`${method} ${url.slice(`/k8s${prefix}`.length)}`] ?? [
      404,
      { kind: 'Status', message: url },
    ];
    answer.writeHead(status, { 'content-type': 'application/json' });
    answer.end(typeof body === 'string' ? body : JSON.stringify(body));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  const way: ClusterAddress = {
    kind: 'cluster',
    server: new URL(`http://127.0.0.1:${port}/k8s`),
    prefix,
    tls: {},
    authorization: 'Bearer for-kubernetes',
    token: 'for-stowage',
    namespace: 'stowage-system',
    account: 'stowage-viewer',
  };
  const kubectl = (...argv: readonly string[]): Promise<CommandResult> =>
    run(undefined, argv, {
      injected: {
        program: 'kubectl stowage',
        cluster: async (options) => {
          given.push(options);
          return way;
        },
      },
    });
  return { kubectl, seen, given };
}

const mount = (node: string, name: string) => ({
  volume: 'sv1-x',
  name,
  target: `/pods/${name}`,
  readOnly: false,
  mounted: true,
  node,
  user: { kind: 'pod', name: 'default/web', node },
  since: new Date().toISOString(),
});
const silent = { node: 'node-9', reason: 'agent-absent', message: 'its agent is not connected' };

test("requests through the proxy have the API server's credentials and Stowage's token in separate headers", async () => {
  const { kubectl, seen, given } = await cluster({ 'GET /v1/stores': page(store('silver')) });
  const ran = await kubectl('--context', 'other', 'store', 'list', '-n', 'storage', '--account', 'boss');
  expect(ran).toMatchObject({ status: 0, stderr: '' });
  expect(given).toMatchObject([{ context: 'other', namespace: 'storage', account: 'boss' }]);
  expect(seen.map(({ request }) => request)).toEqual([`GET /k8s${prefix}/v1/stores`]);
  expect(seen[0]?.headers).toMatchObject({
    authorization: 'Bearer for-kubernetes',
    'stowage-authorization': 'Bearer for-stowage',
  });
});

describe('tables in a cluster', () => {
  test('show the node of each volume, and name the nodes that could not be reached', async () => {
    const list = { items: [volume('silver', 'a'), volume('disks', 'b', { node: 'node-1' })], next: null };
    const { kubectl } = await cluster({ 'GET /v1/volumes': [200, { ...list, unanswered: [], unreached: [silent] }] });
    const { stdout, stderr } = await kubectl('volume', 'list');
    expect(stdout).toMatch(/^VOLUME +NODE +SIZE .*\nsilver\/a +- .*\ndisks\/b +node-1 /);
    expect(stderr).toBe(
      'note: cannot reach node node-9; its node-local volumes are missing: its agent is not connected\n',
    );
    expect(JSON.parse((await kubectl('volume', 'list', '--json')).stdout)).toHaveLength(2);
  });

  test('show the mounts of all pages', async () => {
    const { kubectl } = await cluster({
      'GET /v1/mounts': [200, { items: [mount('node-1', 'a')], next: 'node-1', unreached: [] }],
      'GET /v1/mounts?after=node-1': [200, { items: [mount('node-2', 'b')], next: null, unreached: [silent] }],
    });
    const { stdout, stderr } = await kubectl('mounts');
    expect(stdout).toMatch(/^VOLUME +NODE +PATH .*\na +node-1 +\/pods\/a .*pod default\/web +\S+\nb +node-2 /);
    expect(stderr).toContain('cannot reach node node-9');
  });

  test('show the node of each data path and finding', async () => {
    const client = { name: 'host', state: 'serving', mounts: 1, pid: 7, version: '9', standby: true };
    const more = { takeovers: 0, deaths: 0, report: '', node: 'node-1' };
    const finding = { check: 'fuse', ok: 'no', detail: 'missing', fix: 'modprobe fuse', node: 'node-1' };
    const { kubectl } = await cluster({
      'GET /v1/client': page({ ...client, ...more }),
      'GET /v1/status': [200, { version: '1' }],
      'GET /v1/doctor': page(finding),
    });
    expect((await kubectl('client', 'status')).stdout).toMatch(/^NODE +NETWORK .*\nnode-1 +host +serving /);
    expect(await kubectl('doctor')).toMatchObject({
      status: 1,
      stdout: 'missing  node-1: fuse: missing\n         fix: modprobe fuse\n',
    });
  });

  test('show node-local stores with their nodes', async () => {
    const nodes = [{ node: 'node-1', state: 'open', volumes: 2, bytes: '1073741824' }];
    const { kubectl } = await cluster({
      'GET /v1/stores': page(store('silver'), store('disks', { nodes })),
      'GET /v1/stores/disks': [200, store('disks', { nodes })],
    });
    expect((await kubectl('store', 'list')).stdout).toMatch(/STATE +NODES .*\nsilver .* all .*\ndisks .* open +1 +2 /);
    expect((await kubectl('store', 'show', 'disks')).stdout).toContain('node-1: open, 2 volumes, 1GiB');
  });
});

test('status names the nodes without an agent', async () => {
  const about = { version: '1', instance: 'i', node: 'n', pid: null, startedAt: new Date().toISOString(), ready: true };
  const rest = { defaultStore: null, listen: [], state: null, config: null, plugins: [], engines: [], stores: 1 };
  const counts = { storesInTrouble: [], volumes: 3, mounts: 0, operations: 0, rssBytes: 1 };
  const agents = [
    { node: 'node-1', connected: true },
    { node: 'node-2', connected: false },
  ];
  const mounting = { able: false, why: null, action: null };
  const { kubectl } = await cluster({ 'GET /v1/status': [200, { ...about, ...rest, ...counts, mounting, agents }] });
  const { stdout } = await kubectl('status');
  expect(stdout).toMatch(/nodes +1 of 2 have a connected agent\n +not connected: node-2\n/);
  expect(stdout).toMatch(/contains +1 store, 3 volumes, not counting node-local volumes\n/);
  expect(stdout).not.toContain('mounting');
});

describe('errors of the API server itself', () => {
  const status = (code: number, message: string) => [code, { kind: 'Status', message }] as const;
  test.each<[string, readonly [number, unknown?], number, string, string]>([
    [
      'no rule',
      status(403, 'services is forbidden'),
      3,
      'you are not allowed to reach Stowage through the API server',
      'Role stowage-viewers',
    ],
    ['no leader', status(404, 'services "stowage" not found'), 10, 'cannot reach a Stowage controller', 'kubectl logs'],
    ['no endpoint', status(503, 'no endpoints available'), 10, 'cannot reach a Stowage controller', 'kubectl logs'],
    [
      'a line of the proxy',
      [502, 'error trying to reach service'],
      10,
      'cannot reach a Stowage controller',
      'kubectl logs',
    ],
    ['no credentials', status(401, 'Unauthorized'), 3, 'rejected the credentials', 'kubectl version'],
    ['an unknown status', [418, { kind: 'Status' }], 1, 'is not a valid Stowage response (status 418)', 'same version'],
  ])('%s', async (_, reply, exit, error, action) => {
    const { kubectl } = await cluster({ 'GET /v1/status': reply });
    const ran = await kubectl('status');
    expect(ran.status).toBe(exit);
    expect(ran.stderr).toContain(error);
    expect(ran.stderr).toContain(action);
    expect(ran.stderr).not.toMatch(/for-kubernetes|for-stowage/);
  });

  test("an error of Stowage is shown, with kubectl stowage as the program's name", async () => {
    const problem = {
      detail: 'no',
      code: 'not-found',
      reason: 'x',
      action: 'See: stowage store list, or run stowage up.',
    };
    const { kubectl } = await cluster({ 'GET /v1/status': [404, problem] });
    expect((await kubectl('status')).stderr).toBe(
      'error: no\naction: See: kubectl stowage store list, or run stowage up.\n',
    );
  });
});

describe('commands that are not available in a cluster', () => {
  test.each([
    [['up', '--nfs'], "'up' is not available in a cluster", 'stowage up'],
    [['node'], "'node' is not available in a cluster", 'The chart runs it'],
    [['mount', 'demo', '/mnt'], 'pods mount volumes', 'PersistentVolumeClaim'],
    [['umount', '/mnt'], "'unmount' is not available in a cluster", 'Delete the pod'],
    [['token', 'create', 'x', '--role', 'admin'], 'permissions come from Kubernetes RBAC', '--account NAME'],
    [['store', 'add', 'x', 'nfs://y/z'], "'store add' is not available in a cluster", 'Apply a Store'],
    [['client', 'upgrade'], 'a DaemonSet', 'kubectl rollout restart'],
  ])('%j is refused, with what to do instead', async (argv, why, action) => {
    const { kubectl, seen } = await cluster({});
    const { status, stderr } = await kubectl(...argv);
    expect({ status, seen }).toEqual({ status: 2, seen: [] });
    expect(stderr).toContain(why);
    expect(stderr).toContain(action);
  });
});

describe('help of kubectl stowage', () => {
  const injected = { version: '1', program: 'kubectl stowage', cluster: async () => Promise.reject(new Error('no')) };
  const tree = commandTree(createProgram(injected, () => async () => undefined)).map(({ path }) => path);

  test('lists only the available commands', () => {
    const names = tree.map((path) => path.join(' '));
    expect(names).toEqual(
      expect.arrayContaining(['status', 'doctor', 'mounts', 'store list', 'volume delete', 'client status']),
    );
    for (const name of ['up', 'node', 'mount', 'token', 'store add', 'client upgrade', 'nfs'])
      expect(names).not.toContain(name);
  });

  test.each(tree.map((path) => ({ name: path.join(' '), path })))(
    'of “$name” calls it kubectl stowage',
    async ({ path }) => {
      const { kubectl } = await cluster({});
      const { status, stdout } = await kubectl(...path, '--help');
      expect(status).toBe(0);
      expect(stdout).toContain(
        `Usage: ${['kubectl stowage', ...path].join(' ')}`.replace('operations list', 'operations list'),
      );
      expect(stdout).not.toMatch(
        /(?<!kubectl )stowage (?:volume|store|mounts|client|status|doctor|events|operations)\b/,
      );
      expect(stdout).not.toContain('--socket');
    },
  );
});

describe('completion of kubectl stowage', () => {
  test('prints a program for kubectl', async () => {
    const { kubectl } = await cluster({});
    expect((await kubectl('completion')).stdout).toContain('exec kubectl-stowage __complete_words -- "$@"');
  });

  test.each([
    [['vol'], 'volume\n:4\n'],
    [['volume', 'sh'], 'show\n:4\n'],
    [['volume', 'show', 'si'], 'silver/a\n:4\n'],
    [['-n', 'x', 'store', 'show', ''], 'silver\n:4\n'],
    [['--kubeconfig', ''], ':0\n'],
    [['mounts', '--cont'], '--context\n:4\n'],
    [['volume', 'create', 'x'], ':4\n'],
  ])('of %j', async (words, printed) => {
    const { kubectl } = await cluster({
      'GET /v1/stores': page(store('silver')),
      'GET /v1/volumes': [200, { items: [volume('silver', 'a'), volume('disks', 'b')], next: null, unanswered: [] }],
    });
    expect(await kubectl('__complete_words', '--', ...words)).toEqual({ status: 0, stdout: printed, stderr: '' });
  });
});
