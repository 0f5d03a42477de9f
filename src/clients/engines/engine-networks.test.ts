import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { afterEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import type { EngineKind } from '#core/containers.ts';
import { type ScriptedEngine, startScriptedEngine } from '#testbed/scripted-engine.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createDockerClient } from '#wire/docker/client.ts';
import { createEngineNetworks, type EngineNetworks } from './engine-networks.ts';

const { signal } = new AbortController();
let cleanups = new AsyncDisposableStack();
afterEach(async () => {
  await cleanups.disposeAsync();
  cleanups = new AsyncDisposableStack();
});

/** A namespace that is visible here. */
const ownNamespace = '/proc/self/ns/net';
const otherNamespace = '/proc/thread-self/ns/net';

interface FakeContainer {
  readonly id: string;
  readonly name: string;
  running: boolean;
  sandbox: string;
  pid: number;
  readonly networkMode?: string;
  networks: Readonly<Record<string, { readonly NetworkID: string }>>;
  readonly labels: Readonly<Record<string, string>>;
  readonly body: unknown;
}

/** The subset of an engine's API that anchors need. */
interface FakeEngine extends ScriptedEngine {
  readonly containers: Map<string, FakeContainer>;
  /** Network ids by name. */
  readonly networks: Map<string, string>;
  readonly images: Set<string>;
  /** The namespace of every container that is started. */
  sandbox: string;
  pid: number;
  /** The statuses of calls that fail, by `METHOD /path`. */
  readonly failures: Map<string, { readonly status: number; readonly message: string }>;
  /** The calls so far, without GET requests. */
  readonly changes: () => readonly string[];
}

async function fakeEngine(): Promise<FakeEngine> {
  const containers = new Map<string, FakeContainer>();
  const networks = new Map<string, string>();
  const images = new Set<string>();
  const failures: FakeEngine['failures'] = new Map();
  let createdCount = 0;
  const findNetwork = (idOrName: string) => [...networks].find((one) => one.includes(idOrName));
  const findContainer = (idOrName: string) =>
    [...containers.values()].find(({ id, name }) => [id, name].includes(idOrName));

  const serve = async (path: string, request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const body = await text(request);
    const answer = (value: unknown, status = 200): void =>
      void response.writeHead(status).end(status === 204 ? undefined : JSON.stringify(value));
    const missing = (): void => answer({ message: 'no such thing' }, 404);
    const refused = failures.get(`${request.method} ${path.replace(/\/c\d+/, '')}`);
    if (refused !== undefined) return answer({ message: refused.message }, refused.status);
    const [, noun, name = '', verb] = path.split('/').map(decodeURIComponent);
    if (noun === 'images' && path === '/images/load') {
      images.add('stowage.dev/anchor:1');
      return answer({ stream: 'Loaded image: stowage.dev/anchor:1\n' });
    }
    if (noun === 'images') return images.has('stowage.dev/anchor:1') ? answer({ Id: 'image' }) : missing();
    if (noun === 'networks') {
      const found = findNetwork(name);
      return found ? answer({ Name: found[0], Id: found[1], Driver: 'bridge', Internal: true }) : missing();
    }
    if (path === '/containers/json') return answer([...containers.values()].map(listed));
    if (path === '/containers/create') {
      const requested = JSON.parse(body);
      const containerName = new URLSearchParams(request.url?.split('?')[1]).get('name') ?? '';
      if (findContainer(containerName) !== undefined) return answer({ message: 'name is in use' }, 409);
      const network = findNetwork(requested.HostConfig.NetworkMode);
      if (network === undefined) return missing();
      containers.set(containerName, {
        id: `c${++createdCount}`,
        name: containerName,
        running: false,
        sandbox: '',
        pid: 0,
        labels: requested.Labels,
        body: requested,
        networks: { [network[0]]: { NetworkID: network[1] } },
      });
      return answer({ Id: `c${createdCount}` }, 201);
    }
    const found = findContainer(name);
    if (found === undefined) return missing();
    if (request.method === 'DELETE') {
      containers.delete(found.name);
      return answer(undefined, 204);
    }
    if (verb === 'start') {
      Object.assign(found, { running: true, sandbox: engine.sandbox, pid: engine.pid });
      return answer(undefined, 204);
    }
    return answer(inspected(found));
  };
  const scripted = await startScriptedEngine((...call) => void serve(...call));
  const engine: FakeEngine = Object.assign(scripted, {
    containers,
    networks,
    images,
    failures,
    sandbox: ownNamespace,
    pid: 0,
    changes: () => scripted.requests.filter((one) => !one.startsWith('GET ')).map((one) => one.replace('/v1.41', '')),
  });
  return engine;
}

const listed = ({ id, name, running, labels }: FakeContainer): object => ({
  Id: id,
  Names: [`/${name}`],
  Image: 'x',
  State: running ? 'running' : 'exited',
  Labels: labels,
  Mounts: [],
});

const inspected = ({ id, name, running, sandbox, pid, networkMode, networks, labels }: FakeContainer): object => ({
  HostConfig: { NetworkMode: networkMode ?? 'default' },
  Id: id,
  Name: `/${name}`,
  Image: 'x',
  Config: { Labels: labels },
  Mounts: [],
  State: { Status: running ? 'running' : 'exited', Running: running, Pid: pid, ExitCode: 0, Error: '' },
  NetworkSettings: { SandboxKey: sandbox, Networks: networks },
});

const container = (name: string, more: Partial<FakeContainer> = {}): FakeContainer => ({
  id: `id-of-${name}`,
  name,
  running: true,
  sandbox: ownNamespace,
  pid: 0,
  networks: {},
  labels: {},
  body: {},
  ...more,
});

const onHostNetwork = async (): Promise<boolean> => true;

interface EngineFixture {
  readonly networks: EngineNetworks;
  readonly docker: FakeEngine;
  readonly podman: FakeEngine;
}

async function createFixture(
  instance = 'one',
  clock = systemClock(),
  hasHostNetwork = onHostNetwork,
): Promise<EngineFixture> {
  const [docker, podman] = [cleanups.use(await fakeEngine()), cleanups.use(await fakeEngine())];
  docker.networks.set('storage', 'net-1');
  const engines = new Map(
    Object.entries({ docker, podman }).map(([kind, { socket }]) => [
      kind as EngineKind,
      cleanups.use(createDockerClient({ socket, clock })),
    ]),
  );
  return {
    docker,
    podman,
    networks: createEngineNetworks({ engines, instance, log: silentLog(), clock, hasHostNetwork }),
  };
}

const onlyContainer = ({ containers }: FakeEngine): FakeContainer => {
  const [first, ...rest] = containers.values();
  if (first === undefined || rest.length > 0) throw new Error(`there are ${containers.size} containers`);
  return first;
};

describe('finding the namespace of a network', () => {
  test.each(['/proc/1/ns/net', 'netns:storage'])(
    'returns %s, a namespace itself, without asking an engine',
    async (name) => {
      const { networks, docker, podman } = await createFixture();
      expect(await networks.findNamespace(name, signal)).toBe(name);
      expect([...docker.requests, ...podman.requests]).toEqual([]);
    },
  );

  test("attaches an unprivileged container to an engine's network", async () => {
    const { networks, docker, podman } = await createFixture();
    expect(await networks.findNamespace('docker:storage', signal)).toBe(ownNamespace);
    const anchor = onlyContainer(docker);
    expect(anchor).toMatchObject({
      running: true,
      labels: { 'stowage.dev/anchor': 'docker:storage', 'stowage.dev/instance': 'one' },
      body: {
        Image: 'stowage.dev/anchor:1',
        HostConfig: {
          NetworkMode: 'storage',
          CapDrop: ['ALL'],
          ReadonlyRootfs: true,
          SecurityOpt: ['no-new-privileges'],
          RestartPolicy: { Name: 'unless-stopped' },
        },
      },
    });
    podman.networks.set('backend', 'backend');
    expect(await networks.findNamespace('podman:backend', signal)).toBe(ownNamespace);
    expect(onlyContainer(podman).labels).toMatchObject({ 'stowage.dev/anchor': 'podman:backend' });
    expect(onlyContainer(docker)).toBe(anchor);
  });

  test('finds the namespace of a running container in any engine', async () => {
    const { networks, docker, podman } = await createFixture();
    docker.containers.set('web', container('web'));
    podman.containers.set('db', container('db'));
    for (const name of ['container:web', 'web', 'container:db', 'db'])
      expect(await networks.findNamespace(name, signal)).toBe(ownNamespace);
    expect([...docker.changes(), ...podman.changes()]).toEqual([]);
  });

  test('accepts a bare network name; a container of that name takes precedence', async () => {
    const { networks, docker, podman } = await createFixture();
    podman.networks.set('backend', 'backend');
    expect(await networks.findNamespace('backend', signal)).toBe(ownNamespace);
    expect(onlyContainer(podman).labels).toMatchObject({ 'stowage.dev/anchor': 'podman:backend' });
    docker.containers.set('backend', container('backend', { sandbox: otherNamespace }));
    expect(await networks.findNamespace('backend', signal)).toBe(otherNamespace);
  });

  test.each(['nobody', 'container:nobody', 'container:storage'])('refuses the unknown %s', async (name) => {
    const { networks } = await createFixture();
    await expect(networks.findNamespace(name, signal)).rejects.toMatchObject({
      code: 'not-found',
      reason: 'engine-place-unknown',
      action: expect.stringContaining('docker ps, docker network ls, podman ps'),
    });
  });

  describe('of a container that does not run', () => {
    const stopped = (more: Partial<FakeContainer>): FakeContainer =>
      container('web', { running: false, sandbox: '', ...more });

    test('uses the network that it will have', async () => {
      const { networks, docker } = await createFixture();
      docker.containers.set('web', stopped({ networks: { storage: { NetworkID: '' } } }));
      for (const name of ['container:web', 'web'])
        expect(await networks.findNamespace(name, signal)).toBe(ownNamespace);
      docker.containers.delete('web');
      expect(onlyContainer(docker).labels).toMatchObject({ 'stowage.dev/anchor': 'docker:storage' });
    });

    test("uses the network of another container if it shares that, and Stowage's own for the host's network", async () => {
      const { networks, docker } = await createFixture();
      docker.containers.set('db', container('db', { sandbox: otherNamespace }));
      docker.containers.set('web', stopped({ networkMode: 'container:id-of-db' }));
      expect(await networks.findNamespace('web', signal)).toBe(otherNamespace);
      docker.containers.set('web', stopped({ networkMode: 'host', networks: { host: { NetworkID: 'h' } } }));
      expect(await networks.findNamespace('web', signal)).toBe(ownNamespace);
      expect(docker.changes()).toEqual([]);
    });

    test("refuses the host's network if Stowage runs in a container with another network", async () => {
      const { networks, docker } = await createFixture('one', systemClock(), async () => false);
      docker.containers.set('web', stopped({ networkMode: 'host', networks: { host: { NetworkID: 'h' } } }));
      await expect(networks.findNamespace('web', signal)).rejects.toMatchObject({
        code: 'unsupported',
        reason: 'engine-network-hidden',
        message: "container 'web' uses the network of the host, which is not visible in Stowage's container",
        action: "Start Stowage's container with --network host, or name a network of the engine.",
      });
    });

    test.each([
      [
        { networks: { apps: { NetworkID: '' }, storage: { NetworkID: '' } } },
        'container-networks-several',
        "container 'web' does not run, and has several networks: apps, storage",
        'Name one of them: --from docker:apps, --from docker:storage',
      ],
      [
        { networkMode: 'none', networks: { none: { NetworkID: 'n' } } },
        'container-without-network',
        "container 'web' has no network",
        'The container needs no network for its volumes: Stowage itself connects to the server. Check the store without --from.',
      ],
      [
        { networkMode: 'container:gone' },
        'container-without-network',
        "container 'web' shares the network of a container that is gone",
        "Remove container 'web' and create it again, or name a network.",
      ],
    ])('refuses an ambiguous or missing network: %o', async (more, reason, message, action) => {
      const { networks, docker } = await createFixture();
      docker.containers.set('web', stopped(more));
      await expect(networks.findNamespace('web', signal)).rejects.toMatchObject({
        code: 'conflict',
        reason,
        message,
        action,
      });
      expect(docker.changes()).toEqual([]);
    });
  });

  test('refuses a network of an engine that is not configured', async () => {
    const networks = createEngineNetworks({
      engines: new Map(),
      instance: 'one',
      log: silentLog(),
      hasHostNetwork: onHostNetwork,
    });
    await expect(networks.findNamespace('web', signal)).rejects.toMatchObject({
      reason: 'engine-place-unknown',
      action: expect.stringContaining('--docker-socket'),
    });
    await expect(networks.findNamespace('docker:storage', signal)).rejects.toMatchObject({
      reason: 'engine-unknown',
      action: expect.stringContaining('--docker-socket'),
    });
  });

  test('reports an engine that does not answer, unless another engine has the container', async () => {
    const { networks, docker, podman } = await createFixture();
    await docker.stop();
    podman.containers.set('db', container('db'));
    expect(await networks.findNamespace('db', signal)).toBe(ownNamespace);
    for (const name of ['docker:storage', 'container:web', 'web'])
      await expect(networks.findNamespace(name, signal)).rejects.toMatchObject({
        code: 'unavailable',
        reason: 'engine-unreachable',
        message: expect.stringContaining('engine docker'),
      });
  });
});

describe('a namespace', () => {
  test('is not guessed from the pid if only the engine can see it', async () => {
    const { networks, docker } = await createFixture();
    // Another process has that pid here.
    docker.containers.set('web', container('web', { sandbox: '/run/docker/netns/123', pid: process.pid }));
    await expect(networks.findNamespace('web', signal)).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'engine-network-hidden',
      message: "the network of container 'web' is not visible here: no /run/docker/netns/123",
      action: expect.stringContaining('-v /run/docker/netns:/run/docker/netns:rslave'),
    });
    docker.sandbox = '/run/docker/netns/456';
    await expect(networks.findNamespace('docker:storage', signal)).rejects.toMatchObject({
      reason: 'engine-network-hidden',
    });
  });

  test('is reported as hidden if a regular file is at its path', async () => {
    const { networks, docker } = await createFixture();
    docker.containers.set('web', container('web', { sandbox: '/proc/self/status' }));
    await expect(networks.findNamespace('web', signal)).rejects.toMatchObject({ reason: 'engine-network-hidden' });
  });

  test("is found through the container's process if that is its own", async () => {
    const { networks, docker } = await createFixture();
    const id = readFileSync('/proc/self/cgroup', 'utf8').trim();
    docker.containers.set('web', container('web', { id, sandbox: '', pid: process.pid }));
    expect(await networks.findNamespace('web', signal)).toBe(`/proc/${process.pid}/ns/net`);
  });

  test('of a container that shares a network must be requested through the owner of the network', async () => {
    const { networks, docker } = await createFixture();
    docker.containers.set('web', container('web', { sandbox: '', pid: process.pid }));
    await expect(networks.findNamespace('web', signal)).rejects.toMatchObject({
      message: "the network of container 'web' is not visible here: the container shares the network of another one",
      action: expect.stringContaining('shares its network with'),
    });
  });
});

describe('an anchor', () => {
  test('is created once for concurrent callers, and so is its image', async () => {
    const { networks, docker } = await createFixture();
    docker.networks.set('backend', 'net-2');
    const networkNames = ['docker:storage', 'docker:storage', 'docker:storage', 'docker:backend'];
    await Promise.all(networkNames.map((name) => networks.findNamespace(name, signal)));
    await networks.findNamespace('docker:storage', signal);
    const count = (what: RegExp): number => docker.changes().filter((one) => what.test(one)).length;
    expect(docker.containers.size).toBe(2);
    expect(count(/^POST \/containers\/create/)).toBe(2);
    expect(count(/^POST \/containers\/c\d\/start/)).toBe(2);
    docker.containers.clear();
    await networks.findNamespace('docker:storage', signal);
    // Two networks may both have found the image missing.
    expect(count(/^POST \/images\/load/)).toBeLessThanOrEqual(2);
  });

  test('of an earlier run of the same instance is reused', async () => {
    const { networks, docker } = await createFixture();
    await networks.findNamespace('docker:storage', signal);
    const engines = new Map([
      ['docker', cleanups.use(createDockerClient({ ...docker, clock: systemClock() }))],
    ] as const);
    const changesBefore = docker.changes();
    const restarted = createEngineNetworks({
      engines,
      instance: 'one',
      log: silentLog(),
      hasHostNetwork: onHostNetwork,
    });
    expect(await restarted.findNamespace('docker:storage', signal)).toBe(ownNamespace);
    expect(docker.changes()).toEqual(changesBefore);
    // The anchor of another instance is not reused.
    const other = createEngineNetworks({ engines, instance: 'two', log: silentLog(), hasHostNetwork: onHostNetwork });
    await other.findNamespace('docker:storage', signal);
    expect(docker.containers.size).toBe(2);
  });

  test('is kept if its network was given by id', async () => {
    const { networks, docker } = await createFixture();
    await networks.findNamespace('docker:net-1', signal);
    const { id } = onlyContainer(docker);
    await networks.findNamespace('docker:net-1', signal);
    expect(onlyContainer(docker).id).toBe(id);
  });

  test.each([
    ['was stopped', (anchor: FakeContainer) => Object.assign(anchor, { running: false, sandbox: '' })],
    ['was disconnected from the network', (anchor: FakeContainer) => Object.assign(anchor, { networks: {} })],
  ])('that %s is created again', async (_how, change) => {
    const { networks, docker } = await createFixture();
    await networks.findNamespace('docker:storage', signal);
    const anchor = onlyContainer(docker);
    change(anchor);
    docker.sandbox = otherNamespace;
    expect(await networks.findNamespace('docker:storage', signal)).toBe(otherNamespace);
    expect(onlyContainer(docker).id).not.toBe(anchor.id);
  });

  test('is created again if its network was removed and created again', async () => {
    const { networks, docker } = await createFixture();
    await networks.findNamespace('docker:storage', signal);
    const anchor = onlyContainer(docker);
    Object.assign(anchor, { running: false, sandbox: '' });
    docker.networks.set('storage', 'net-2');
    await networks.findNamespace('docker:storage', signal);
    expect(onlyContainer(docker)).toMatchObject({ running: true, networks: { storage: { NetworkID: 'net-2' } } });
    expect(onlyContainer(docker).id).not.toBe(anchor.id);
  });

  test('is not left behind if its network is gone', async () => {
    const { networks, docker } = await createFixture();
    await networks.findNamespace('docker:storage', signal);
    Object.assign(onlyContainer(docker), { running: false, sandbox: '' });
    docker.networks.delete('storage');
    await expect(networks.findNamespace('docker:storage', signal)).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'engine-network-missing',
      message: "docker has no network 'storage'",
      action: expect.stringMatching(/docker network create storage.*the store's option network, or in --from\.$/),
    });
    expect(docker.containers.size).toBe(0);
  });

  test('is not left behind if it cannot be started', async () => {
    const { networks, docker } = await createFixture();
    docker.failures.set('POST /containers/start', { status: 403, message: 'no available IPv4 addresses' });
    await expect(networks.findNamespace('docker:storage', signal)).rejects.toMatchObject({
      reason: 'engine-refused',
      message: expect.stringContaining('no available IPv4 addresses'),
    });
    expect(docker.containers.size).toBe(0);
    docker.failures.clear();
    expect(await networks.findNamespace('docker:storage', signal)).toBe(ownNamespace);
  });

  test('stays in use while its engine does not answer, as long as its namespace exists', async () => {
    const clock = createFakeClock();
    const { networks, docker } = await createFixture('one', clock);
    await networks.findNamespace('docker:storage', signal);
    await docker.stop();
    expect(await networks.findNamespace('docker:storage', signal)).toBe(ownNamespace);
    await docker.start();
    // The engine accepts connections and does not answer.
    const { script } = docker;
    const silent = Promise.withResolvers<void>();
    docker.script = () => silent.resolve();
    const found = networks.findNamespace('docker:storage', signal);
    await silent.promise;
    clock.advance(2_000);
    expect(await found).toBe(ownNamespace);
    docker.script = script;
    onlyContainer(docker).sandbox = '/run/docker/netns/gone';
    docker.sandbox = '/run/docker/netns/gone';
    await expect(networks.findNamespace('docker:storage', signal)).rejects.toMatchObject({
      reason: 'engine-network-hidden',
    });
    await docker.stop();
    await expect(networks.findNamespace('docker:storage', signal)).rejects.toMatchObject({
      reason: 'engine-unreachable',
    });
  });

  test('is not created for a caller that has given up', async () => {
    const { networks, docker } = await createFixture();
    const caller = new AbortController();
    const requestReceived = Promise.withResolvers<void>();
    const { script } = docker;
    docker.script = () => requestReceived.resolve();
    const found = networks.findNamespace('docker:storage', caller.signal);
    await requestReceived.promise;
    docker.script = script;
    caller.abort();
    await expect(found).rejects.toMatchObject({ code: 'canceled' });
    expect(docker.containers.size).toBe(0);
    expect(await networks.findNamespace('docker:storage', signal)).toBe(ownNamespace);
  });
});

describe('removing unused anchors', () => {
  const containerNames = ({ containers }: FakeEngine): readonly string[] =>
    [...containers.values()].map(({ labels, name }) => labels['stowage.dev/anchor'] ?? name).sort();

  test('removes unused anchors of this instance', async () => {
    const clock = createFakeClock();
    const { networks, docker, podman } = await createFixture('one', clock);
    docker.networks.set('backend', 'net-2');
    for (const name of ['docker:storage', 'docker:backend']) await networks.findNamespace(name, signal);
    const otherInstanceLabels = { 'stowage.dev/anchor': 'theirs', 'stowage.dev/instance': 'two' };
    docker.containers.set('theirs', container('theirs', { labels: otherInstanceLabels }));
    docker.containers.set('keeper', container('keeper', { labels: { 'stowage.dev/instance': 'one' } }));
    docker.containers.set('web', container('web'));
    const unusedLabels = { 'stowage.dev/anchor': 'podman:gone', 'stowage.dev/instance': 'one' };
    podman.containers.set('left', container('left', { labels: unusedLabels }));
    const used = new Set(['docker:storage']);
    // A check, or a store that was just added, may still need it.
    await networks.removeUnusedAnchors(used, signal);
    expect(containerNames(docker)).toEqual(['docker:backend', 'docker:storage', 'keeper', 'theirs', 'web']);
    expect(containerNames(podman)).toEqual([]);
    clock.advance(20_000);
    await networks.removeUnusedAnchors(used, signal);
    expect(containerNames(docker)).toEqual(['docker:storage', 'keeper', 'theirs', 'web']);
    await networks.removeUnusedAnchors(new Set(), signal);
    expect(containerNames(docker)).toEqual(['keeper', 'theirs', 'web']);
  });

  test('continues with other engines if one does not answer or refuses', async () => {
    const clock = createFakeClock();
    const { networks, docker, podman } = await createFixture('one', clock);
    await networks.findNamespace('docker:storage', signal);
    clock.advance(20_000);
    const unusedLabels = { 'stowage.dev/anchor': 'podman:gone', 'stowage.dev/instance': 'one' };
    podman.containers.set('left', container('left', { labels: unusedLabels }));
    await networks.removeUnusedAnchors(new Set(['docker:storage']), signal);
    expect(containerNames(podman)).toEqual([]);
    podman.containers.set('left', container('left', { labels: unusedLabels }));
    docker.failures.set('DELETE /containers', { status: 409, message: 'removal is already in progress' });
    await networks.removeUnusedAnchors(new Set(), signal);
    expect(containerNames(podman)).toEqual([]);
    podman.containers.set('left', container('left', { labels: unusedLabels }));
    await docker.stop();
    await networks.removeUnusedAnchors(new Set(), signal);
    expect(containerNames(podman)).toEqual([]);
  });

  test('ends when the caller aborts', async () => {
    const { networks, docker } = await createFixture();
    const caller = new AbortController();
    docker.script = () => caller.abort(new Error('enough'));
    await expect(networks.removeUnusedAnchors(new Set(), caller.signal)).rejects.toThrow('enough');
  });
});
