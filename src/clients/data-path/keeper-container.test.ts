import type { IncomingMessage, ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { LaunchedProcess } from '#keeper/launch.ts';
import { type ScriptedEngine, startScriptedEngine } from '#testbed/scripted-engine.ts';
import { createDockerClient } from '#wire/docker/client.ts';
import {
  type KeeperContainer,
  killKeeper,
  launchContainer,
  networkFor,
  removeEndedContainers,
} from './keeper-container.ts';
import type { OwnContainer } from './own-container.ts';

interface CreatedContainer {
  readonly User: string;
  readonly Entrypoint: readonly string[];
  readonly Cmd: readonly string[];
  readonly Labels: Readonly<Record<string, string>>;
  readonly HostConfig: Readonly<Record<string, unknown>>;
}

/** An engine that creates containers. Unless `canProtect`, it refuses to start protected ones. */
async function startEngine(options: {
  readonly canProtect: boolean;
  readonly containers?: readonly object[];
  readonly liveRestore?: boolean;
  /** The answer to the removal of a container. */
  readonly removal?: { status: number };
}) {
  const created: CreatedContainer[] = [];
  const end = Promise.withResolvers<number>();
  const answer = (response: ServerResponse, status: number, value?: object): void =>
    void response.writeHead(status).end(value === undefined ? undefined : JSON.stringify(value));
  async function create(request: IncomingMessage, response: ServerResponse): Promise<void> {
    created.push(JSON.parse(await text(request)));
    answer(response, 201, { Id: `made${created.length}` });
  }
  const engine: ScriptedEngine = await startScriptedEngine((path, request, response) => {
    if (path === '/containers/create') void create(request, response);
    else if (path === '/info') answer(response, 200, { LiveRestoreEnabled: options.liveRestore });
    else if (path === '/containers/json') answer(response, 200, options.containers ?? []);
    else if (path.endsWith('/wait')) void end.promise.then((StatusCode) => answer(response, 200, { StatusCode }));
    else if (path.endsWith('/start') && !options.canProtect && created.at(-1)?.HostConfig['OomScoreAdj'] !== undefined)
      answer(response, 500, { message: 'runc create failed' });
    else answer(response, request.method === 'DELETE' ? (options.removal?.status ?? 204) : 204);
  });
  const client = createDockerClient({ socket: engine.socket, clock: systemClock() });
  onTestFinished(async () => {
    client[Symbol.dispose]();
    await engine[Symbol.asyncDispose]();
  });
  const own: OwnContainer = {
    engine: client,
    id: 'own',
    image: 'sha256:1',
    onHostNetwork: true,
    hostPath: (path) => (path.startsWith('/run/') ? `/host${path}` : undefined),
  };
  return { engine, created, own, end: end.resolve };
}

const { signal } = new AbortController();
const command = { words: ['node', 'keeper.mjs'], env: { LC_ALL: 'C' } } as const;

async function launch(
  own: OwnContainer,
  overrides: Partial<KeeperContainer> = {},
): Promise<[LaunchedProcess, string[]]> {
  const messages: string[] = [];
  const container: KeeperContainer = {
    own,
    instance: 'i',
    name: 'host',
    folder: '/run/k/host',
    user: 61_234,
    privilegedPorts: false,
    network: { kind: 'host' },
    logOnce: (message) => void messages.push(message),
    ...overrides,
  };
  return [await launchContainer(container)(command, signal), messages];
}

describe('a keeper in a container', () => {
  test('has no capabilities, and one folder of the host', async () => {
    const { own, created } = await startEngine({ canProtect: true });
    const [, told] = await launch(own);
    expect(created).toHaveLength(1);
    expect(created[0]).toMatchObject({
      Image: 'sha256:1',
      User: '61234:61234',
      Cmd: ['node', 'keeper.mjs'],
      Env: ['LC_ALL=C'],
      Labels: { 'stowage.dev/keeper': 'host', 'stowage.dev/instance': 'i' },
      Healthcheck: { Test: ['NONE'] },
      HostConfig: {
        Binds: ['/host/run/k/host:/run/k/host'],
        NetworkMode: 'host',
        CapDrop: ['ALL'],
        CapAdd: [],
        ReadonlyRootfs: true,
        AutoRemove: true,
        RestartPolicy: { Name: 'no' },
        OomScoreAdj: -900,
        Ulimits: [{ Name: 'memlock', Soft: -1, Hard: -1 }],
      },
    });
    expect(told).toEqual([]);
  });

  test('starts without protection if the engine cannot grant it, and logs that', async () => {
    const { engine, own, created } = await startEngine({ canProtect: false });
    const [, told] = await launch(own);
    expect(created.map(({ HostConfig }) => HostConfig['OomScoreAdj'])).toEqual([-900, undefined]);
    expect(told).toEqual(['the data path is not protected from the OOM killer']);
    // The first container is removed.
    expect(engine.requests.filter((each) => each.startsWith('DELETE'))).toEqual([
      'DELETE /v1.41/containers/made1?force=1&v=1',
    ]);
  });

  test('drops all capabilities except NET_BIND_SERVICE before our code starts', async () => {
    const { own, created } = await startEngine({ canProtect: true });
    await launch(own, { privilegedPorts: true });
    expect(created[0]?.User).toBe('0:0');
    expect(created[0]?.HostConfig['CapAdd']).toEqual(['SETUID', 'SETGID', 'SETPCAP', 'NET_BIND_SERVICE']);
    expect(created[0]?.Entrypoint.slice(0, 3)).toEqual(['setpriv', '--reuid=61234', '--regid=61234']);
    expect(created[0]?.Entrypoint).toContain('--bounding-set=-all,+net_bind_service');
  });

  test('enters a network namespace that belongs to no container', async () => {
    const { own, created } = await startEngine({ canProtect: true });
    const named = { network: 'netns:storage', namespace: 'netns:storage', instance: 'i' };
    const network = await networkFor(own, named, signal);
    expect(network).toEqual({ kind: 'namespace', hostPath: '/host/run/netns/storage' });
    await launch(own, { network });
    expect(created[0]?.HostConfig['Binds']).toContain('/host/run/netns/storage:/run/netns/store:ro');
    expect(created[0]?.Entrypoint.slice(0, 4)).toEqual(['nsenter', '--net=/run/netns/store', '--', 'setpriv']);
  });

  test('shares the network of this Stowage’s own anchor', async () => {
    const anchor = (Id: string, instance: string) => ({
      Id,
      State: 'running',
      Labels: { 'stowage.dev/anchor': 'docker:far', 'stowage.dev/instance': instance },
    });
    const { own, created } = await startEngine({ canProtect: true, containers: [anchor('a', 'j'), anchor('b', 'i')] });
    const named = { network: 'docker:far', namespace: '/run/docker/netns/1', instance: 'i' };
    await launch(own, { network: await networkFor(own, named, signal) });
    expect(created[0]?.HostConfig).toMatchObject({ NetworkMode: 'container:b', CapAdd: [] });
  });

  test('reports its exit status, and is removed by kill()', async () => {
    const { engine, own, end } = await startEngine({ canProtect: true });
    const [{ ended, kill, pid }] = await launch(own);
    expect(pid).toBeUndefined();
    end(2);
    expect(await ended).toBe(2);
    await kill();
    expect(engine.requests.at(-1)).toBe('DELETE /v1.41/containers/made1?force=1&v=1');
  });

  test('outlives an engine with live-restore, and is removed by Stowage after its end', async () => {
    const ownLabels = { 'stowage.dev/keeper': 'host', 'stowage.dev/instance': 'i' };
    const containers = [
      { Id: 'left', State: 'exited', Labels: { ...ownLabels, 'stowage.dev/keeper': 'another' } },
      { Id: 'before', State: 'running', Labels: ownLabels },
      { Id: 'other', State: 'exited', Labels: { ...ownLabels, 'stowage.dev/instance': 'j' } },
    ];
    const { engine, own, created, end } = await startEngine({ canProtect: true, containers, liveRestore: true });
    const [{ ended }] = await launch(own);
    expect(created[0]?.HostConfig['AutoRemove']).toBe(false);
    end(0);
    expect(await ended).toBe(0);
    containers.push({ Id: 'made1', State: 'exited', Labels: ownLabels });
    // The other keeper still runs.
    expect(await removeEndedContainers(own, 'i', signal)).toBe(1);
    expect(engine.requests.filter((each) => /DELETE|wait/.test(each))).toEqual([
      'DELETE /v1.41/containers/left?force=1&v=1',
      'POST /v1.41/containers/made1/wait?condition=next-exit',
      'DELETE /v1.41/containers/left?force=1&v=1',
      'DELETE /v1.41/containers/made1?force=1&v=1',
    ]);
  });

  test('counts as present until its engine has removed it', async () => {
    const Labels = { 'stowage.dev/keeper': 'host', 'stowage.dev/instance': 'i' };
    const removal = { status: 409 };
    const { own } = await startEngine({
      canProtect: true,
      containers: [{ Id: 'a', State: 'exited', Labels }],
      removal,
    });
    const remaining = [];
    for (removal.status of [409, 500, 404, 204]) remaining.push(await removeEndedContainers(own, 'i', signal));
    expect(remaining).toEqual([1, 1, 0, 0]);
  });

  test('is killed through its engine if it hangs, and no other container is', async () => {
    const keeper = (Id: string, name: string, instance: string) => ({
      Id,
      State: 'running',
      Labels: { 'stowage.dev/keeper': name, 'stowage.dev/instance': instance },
    });
    const containers = [keeper('a', 'host', 'j'), keeper('b', 'host', 'i'), keeper('c', 'net-1', 'i')];
    const { engine, own } = await startEngine({ canProtect: true, containers });
    expect(await killKeeper(own, 'host', 'i')).toBe(true);
    expect(engine.requests.filter((each) => each.includes('/kill'))).toEqual([
      'POST /v1.41/containers/b/kill?signal=USR1',
    ]);
    expect(await killKeeper(own, 'net-2', 'i')).toBe(false);
  });
});
