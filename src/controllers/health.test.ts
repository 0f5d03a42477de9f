import { beforeEach, expect, test } from 'vitest';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { createFakeAgents, type FakeAgents } from '#testing/fakes/agents.ts';
import { claims, events } from '#wire/kube/resources.ts';
import type { Condition } from '#wire/kube/types.ts';
import { createHealth } from './health.ts';
import type { Controller } from './machinery/controller.ts';
import { createMountProblems, type MountProblems } from './mount-problems.ts';
import { createRestarts } from './restarts.ts';
import { createStoreHealth } from './store-health.ts';
import { storeObjects } from './store-object.ts';
import { createStoresController } from './stores.ts';
import { nodesNotReported, nodesToKeep } from './unhealthy-nodes.ts';

const fixture = controllerFixture();
const podsPath = '/api/v1/namespaces/shop/pods';
const volume = 'sv1-00000000-0000-4000-8000-000000000001';
const uidOf = (pod: string): string => `00000000-0000-4000-8000-${Buffer.from(pod.padEnd(6)).toString('hex')}`;
let agents: FakeAgents;
let mountProblems: MountProblems;
let health: Controller;
/** The problems that each node's agent reports. */
let problems: Map<string, object[]>;
let evicted: string[];
/** The clock of the controller that evicts pods. */
let evictionClockMs: number;
let evictionStatus: number | undefined;

const problem = (pod: string, more: object = {}): object => ({
  volume,
  name: 'silver/a',
  condition: 'store-silent',
  detail: "the server of store 'silver' does not answer",
  target: `/var/lib/kubelet/pods/${uidOf(pod)}/volumes/kubernetes.io~csi/pvc-1/mount`,
  user: { kind: 'pod', name: `shop/${pod}`, node: 'whatever' },
  repairedAt: null,
  ...more,
});
const repaired = (pod: string, at = '2026-01-01T12:00:00.500Z'): object =>
  problem(pod, { condition: 'ok', detail: null, repairedAt: at });

function putPod(name: string, node = 'node-1', startedAt = '2026-01-01T11:00:00Z', metadata: object = {}): void {
  const owner = { apiVersion: 'apps/v1', kind: 'ReplicaSet', name: 'web', uid: 'x', controller: true };
  fixture.api.put(podsPath, {
    metadata: { name, uid: uidOf(name), ownerReferences: [owner], ...metadata },
    spec: {
      nodeName: node,
      containers: [{ name: 'main', volumeMounts: [{ name: 'data' }] }, { name: 'other' }],
      volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }],
    },
    status: {
      phase: 'Running',
      containerStatuses: [
        { name: 'main', state: { running: { startedAt } } },
        { name: 'other', state: { running: { startedAt: '2020-01-01T00:00:00Z' } } },
      ],
    },
  });
}

const setProblems = (node: string, ...all: object[]): void => {
  problems.set(node, all);
  agents.connect(node, () => ({ items: problems.get(node), next: null }));
};
const condition = async (): Promise<Condition | undefined> =>
  (await fixture.list(claims))[0]?.status?.conditions?.find(({ type }) => type === 'stowage.dev/Healthy');
const eventsOn = async (kind: string): Promise<readonly string[]> =>
  (await fixture.list(events))
    .filter(({ regarding }) => regarding.kind === kind)
    .map(({ regarding, type, reason, note }) => `${regarding.name} ${type} ${reason}: ${note}`);

/** Starts the controllers, with timers that are 500 times faster. */
function start(): void {
  const { clock } = fixture.parts;
  const fastClock = { ...clock, after: (ms: number, then: () => void) => clock.after(ms / 500, then) };
  mountProblems = fixture.start((parts) => createMountProblems({ ...parts, agents, clock: fastClock }));
  const restarts = fixture.start((parts) =>
    createRestarts({ ...parts, clock: { ...fastClock, elapsed: () => evictionClockMs } }),
  );
  health = fixture.start((parts) => createHealth({ ...parts, mountProblems, restarts, clock: fastClock }));
}

beforeEach(() => {
  agents = createFakeAgents();
  [problems, evicted, evictionClockMs, evictionStatus] = [new Map(), [], 0, undefined];
  const csi = { driver: 'file.stowage.dev', volumeHandle: volume };
  const claimRef = { namespace: 'shop', name: 'data', uid: 'uid-of-data' };
  fixture.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { csi, claimRef } });
  fixture.api.put(paths.claims, { ...aClaim('data', { volumeName: 'pvc-1' }), status: { phase: 'Bound' } });
  for (const name of ['node-1', 'node-2']) fixture.api.put(paths.nodes, { metadata: { name } });
  fixture.api.intercept = ({ method, url = '' }, response, body) => {
    if (method !== 'POST' || !url.endsWith('/eviction')) return false;
    if (evictionStatus !== undefined)
      fixture.api.refuse(
        response,
        evictionStatus,
        { 403: 'Forbidden', 429: 'TooManyRequests' }[evictionStatus] ?? 'Conflict',
      );
    else {
      const { apiVersion, deleteOptions } = JSON.parse(body);
      evicted.push(`${apiVersion} ${url.split('/').at(-2)} ${deleteOptions.preconditions.uid}`);
      fixture.api.remove(podsPath, url.split('/').at(-2) ?? '');
      response.writeHead(201, { 'content-type': 'application/json' }).end('{}');
    }
    return true;
  };
});

test.each([
  ['its id', volume],
  ['store and name', 'silver..a'],
])(
  'a claim and its pod get one Event when their volume, with the handle %s, becomes unhealthy, and one when it is healthy again',
  async (_, volumeHandle) => {
    const csi = { driver: 'file.stowage.dev', volumeHandle };
    const claimRef = { namespace: 'shop', name: 'data', uid: 'uid-of-data' };
    fixture.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { csi, claimRef } });
    putPod('web');
    start();
    setProblems('node-1', problem('web'));
    setProblems('node-2');
    await eventually(condition).toMatchObject({ status: 'False', reason: 'StoreSilent' });
    const message =
      "On node-1: the server of store 'silver' does not answer. Reads and writes wait until this is fixed. Ask the administrator to check the store: kubectl get stores";
    expect(await condition()).toMatchObject({ message, lastTransitionTime: expect.stringMatching(/^\S+Z$/) });
    await eventually(() => eventsOn('PersistentVolumeClaim')).toEqual([
      `data Warning VolumeConditionAbnormal: ${message}`,
    ]);
    await eventually(() => eventsOn('Pod')).toEqual([
      `web Warning VolumeConditionAbnormal: The volume of claim 'data' is unhealthy on node-1: ${message.replace('On node-1: ', '')}`,
    ]);
    const { length } = agents.requests;
    await eventually(() => agents.requests.length).toBeGreaterThan(length + 5);
    expect(await eventsOn('Pod')).toHaveLength(1);
    problems.set('node-1', []);
    await eventually(condition).toMatchObject({ status: 'True', reason: 'Well' });
    await eventually(() => eventsOn('PersistentVolumeClaim')).toContain(
      'data Normal VolumeConditionNormal: The volume is healthy again.',
    );
    await eventually(() => eventsOn('Pod')).toContain(
      "web Normal VolumeConditionNormal: The volume of claim 'data' is healthy again.",
    );
    expect(evicted).toEqual([]);
  },
);

test('a problem in only one answer of an agent is not reported', async () => {
  putPod('web');
  start();
  let pollCount = 0;
  agents.connect('node-1', () => ({ items: pollCount++ % 2 === 0 ? [problem('web')] : [] }));
  await eventually(() => pollCount).toBeGreaterThan(8);
  expect(await condition()).toBeUndefined();
  expect(fixture.changes()).toEqual([]);
});

test.each<[string, () => void]>([
  ['does not exist', () => undefined],
  ['is on another node', () => putPod('web', 'node-2')],
  ['was replaced', () => putPod('web', 'node-1', undefined, { uid: 'another' })],
  ['is being deleted', () => putPod('web', 'node-1', undefined, { deletionTimestamp: '2026-01-01T00:00:00Z' })],
  [
    'has no such claim',
    () => {
      putPod('web');
      fixture.api.put(podsPath, {
        metadata: { name: 'web', uid: uidOf('web') },
        spec: { nodeName: 'node-1', volumes: [] },
      });
    },
  ],
])('a problem of a pod that %s is not reported', async (_, prepare) => {
  prepare();
  start();
  setProblems('node-1', problem('web'));
  await eventually(() => health.counts().again).toBeGreaterThan(1);
  expect(await condition()).toBeUndefined();
  expect(fixture.changes()).toEqual([]);
});

const unhealthy: Condition = { type: 'stowage.dev/Healthy', status: 'False', reason: 'StoreSilent', message: 'x' };
const annotation = 'stowage.dev/unhealthy-nodes';
const markUnhealthy = (nodes: string | undefined): void => {
  const status = { phase: 'Bound', conditions: [{ type: 'Resizing', status: 'True' }, unhealthy] };
  fixture.api.put(paths.claims, {
    ...aClaim('data', { volumeName: 'pvc-1' }, { annotations: { mine: 'x', ...(nodes && { [annotation]: nodes }) } }),
    status,
  });
};
/** The unhealthy nodes in the annotation, as the next leader reads them. */
const unhealthyNodes = async (): Promise<string | undefined> =>
  (await fixture.list(claims))[0]?.metadata.annotations?.[annotation];

test('a claim that an earlier leader marked unhealthy becomes healthy only when the agents of its nodes have reported, or the nodes are deleted', async () => {
  markUnhealthy('node-1 node-2');
  start();
  setProblems('node-1');
  await eventually(() => agents.requests.length).toBeGreaterThan(3);
  await eventually(() => health.counts().again).toBeGreaterThan(1);
  expect(await condition()).toMatchObject({ status: 'False' });
  fixture.api.remove(paths.nodes, 'node-2');
  await eventually(condition).toMatchObject({ status: 'True' });
  // The conditions of other controllers stay.
  expect((await fixture.list(claims))[0]).toMatchObject({
    metadata: { annotations: { mine: 'x' } },
    status: { conditions: expect.arrayContaining([{ type: 'Resizing', status: 'True' }]) },
  });
  expect(await unhealthyNodes()).toBeUndefined();
});

const nodeNames = (count: number): string[] => Array.from({ length: count }, (_, i) => `node-${i + 1}`);

const podNameOn = (node: string): string => node.replace('node-', 'on');

/** Creates a pod with the claim on each node. */
function putNodes(nodes: readonly string[]): void {
  for (const name of nodes) {
    fixture.api.put(paths.nodes, { metadata: { name } });
    putPod(podNameOn(name), name);
  }
}

/** Another process becomes the leader. The agents of these nodes reconnect to it, and report no problems. */
async function changeLeader(connected: readonly string[]): Promise<void> {
  await fixture.stepDown();
  for (const node of agents.nodes()) agents.disconnect(node);
  start();
  for (const node of connected) setProblems(node);
  await eventually(() => connected.every((node) => mountProblems.isConfirmed(node))).toBe(true);
  await reconcileAgain();
}

/** Reconciles once more with the current state of the nodes, and waits for the end. */
async function reconcileAgain(): Promise<void> {
  const count = (): number => health.counts().again + health.counts().done;
  const before = count();
  health.add(volume);
  await eventually(count).toBeGreaterThan(before);
}

/** A kubelet labels its node when the agent registers. */
const putNode = (name: string): void => {
  fixture.api.put(paths.nodes, { metadata: { name, labels: { [nodeTopologyKey]: name } } });
};

test('a claim that an earlier version marked unhealthy, without its nodes, becomes healthy when every agent has reported', async () => {
  for (const name of ['node-1', 'node-2']) putNode(name);
  markUnhealthy(undefined);
  start();
  setProblems('node-1');
  await eventually(() => mountProblems.isConfirmed('node-1')).toBe(true);
  await reconcileAgain();
  expect(await condition()).toMatchObject({ status: 'False' });
  setProblems('node-2');
  await eventually(condition).toMatchObject({ status: 'True' });
});

test('a claim with more unhealthy nodes than its message names becomes healthy when all of them have reported to the next leader', async () => {
  const nodes = nodeNames(12);
  putNodes(nodes);
  start();
  for (const node of nodes) setProblems(node, problem(podNameOn(node)));
  const namedNodes = [...nodes].sort().slice(0, 10);
  await eventually(async () => (await condition())?.message ?? '').toContain(
    `On ${namedNodes.join(', ')} and 2 more: `,
  );
  await changeLeader(namedNodes);
  expect(await condition()).toMatchObject({ status: 'False' });
  for (const node of nodes) setProblems(node);
  await eventually(condition).toMatchObject({ status: 'True' });
});

test('a claim stays unhealthy while the agent of a node is disconnected that had a less severe problem than the one in the message', async () => {
  putNodes(nodeNames(2));
  start();
  setProblems('node-1', problem('on1', { condition: 'dead', detail: 'x' }));
  setProblems('node-2', problem('on2'));
  await eventually(condition).toMatchObject({ status: 'False', reason: 'MountDead' });
  await eventually(unhealthyNodes).toBe('node-1 node-2');
  await changeLeader(['node-1']);
  expect(await condition()).toMatchObject({ status: 'False' });
  setProblems('node-2');
  await eventually(condition).toMatchObject({ status: 'True' });
});

test('a leader that gets the report of another node first keeps the nodes that have not reported yet', async () => {
  putNodes(nodeNames(2));
  start();
  setProblems('node-2', problem('on2'));
  await eventually(condition).toMatchObject({ status: 'False' });
  await fixture.stepDown();
  agents.disconnect('node-2');
  start();
  setProblems('node-1', problem('on1', { condition: 'dead', detail: 'x' }));
  await eventually(condition).toMatchObject({ reason: 'MountDead' });
  setProblems('node-1');
  await eventually(() => mountProblems.isConfirmed('node-1') && mountProblems.problemsOf(volume).length === 0).toBe(
    true,
  );
  await reconcileAgain();
  expect(await condition()).toMatchObject({ status: 'False' });
  setProblems('node-2');
  await eventually(condition).toMatchObject({ status: 'True' });
});

test('a claim with more unhealthy nodes than fit in its annotation needs the reports of all nodes with agents', async () => {
  const nodes = nodeNames(501);
  for (const name of nodes) putNode(name);
  fixture.api.put(paths.nodes, { metadata: { name: 'without-an-agent' } });
  const known = { mountProblems: { isConfirmed: (node: string) => node !== 'node-7' }, caches: fixture.caches };
  start();
  await eventually(() => [...fixture.caches.nodes.all()].length).toBe(502);
  expect(nodesToKeep(nodes, [], known)).toEqual(['*']);
  expect(nodesNotReported(['*'], known)).toEqual(['node-7']);
  expect(nodesToKeep(['node-1'], ['*'], known)).toEqual(['node-1', 'node-7']);
});

test('the last report of an agent stays valid when its connection is lost', async () => {
  putPod('web');
  start();
  setProblems('node-1', problem('web'));
  await eventually(condition).toMatchObject({ status: 'False' });
  agents.disconnect('node-1');
  await eventually(() => health.counts().again).toBeGreaterThan(3);
  expect(await condition()).toMatchObject({ status: 'False' });
});

test('a remounted volume is unhealthy for containers that started before, until they restart', async () => {
  putPod('old');
  putPod('new', 'node-1', '2026-01-01T12:00:01Z');
  start();
  setProblems('node-1', repaired('old'), repaired('new'));
  await eventually(condition).toMatchObject({ status: 'False', reason: 'RestartNeeded' });
  await eventually(async () => (await eventsOn('Pod')).join()).toContain('Restart the pod. With the annotation');
  expect((await eventsOn('Pod')).every((one) => one.startsWith('old '))).toBe(true);
  // The container has restarted.
  putPod('old', 'node-1', '2026-01-01T12:00:02Z');
  await eventually(condition).toMatchObject({ status: 'True' });
  expect(evicted).toEqual([]);
});

const setRestartAnnotation = (value: string): void => {
  const annotations = { 'stowage.dev/restart-consumers': value };
  const claim = aClaim('data', { volumeName: 'pvc-1' }, { annotations });
  fixture.api.put(paths.claims, { ...claim, status: { phase: 'Bound' } });
};

test('pods that only a restart helps are evicted, with a pause in between, if the claim has the annotation', async () => {
  setRestartAnnotation('true');
  for (const pod of ['one', 'two', 'well']) putPod(pod);
  putPod('alone', 'node-1', undefined, { ownerReferences: [] });
  putPod('static', 'node-1', undefined, {
    ownerReferences: [{ apiVersion: 'v1', kind: 'Node', name: 'node-1', uid: 'x', controller: true }],
  });
  start();
  setProblems('node-1', repaired('one'), repaired('two'), repaired('alone'), repaired('static'), problem('well'));
  await eventually(() => evicted).toHaveLength(1);
  const waitForPolls = async (): Promise<void> => {
    const { length } = agents.requests;
    await eventually(() => agents.requests.length).toBeGreaterThan(length + 3);
  };
  await waitForPolls();
  expect(evicted).toHaveLength(1);
  evictionClockMs += 5_000;
  await eventually(() => evicted.toSorted()).toEqual([
    `policy/v1 one ${uidOf('one')}`,
    `policy/v1 two ${uidOf('two')}`,
  ]);
  await eventually(() => fixture.notes('RestartedForVolume')).toHaveLength(2);
  evictionClockMs += 5_000;
  await waitForPolls();
  expect(evicted).toHaveLength(2);
});

test.each(['false', ''])('no pod is evicted if the annotation is “%s”', async (value) => {
  setRestartAnnotation(value);
  putPod('one');
  start();
  setProblems('node-1', repaired('one'));
  await eventually(condition).toMatchObject({ status: 'False' });
  await eventually(() => health.counts().again).toBeGreaterThan(2);
  expect(evicted).toEqual([]);
});

test('an eviction that a disruption budget forbids is retried', async () => {
  setRestartAnnotation('true');
  putPod('one');
  evictionStatus = 429;
  start();
  setProblems('node-1', repaired('one'));
  await eventually(() => {
    evictionClockMs += 5_000;
    return fixture.api.requests.filter((one) => one.endsWith('/eviction')).length;
  }).toBeGreaterThan(1);
  evictionStatus = undefined;
  await eventually(() => {
    evictionClockMs += 5_000;
    return evicted;
  }).toHaveLength(1);
});

test('a pod that the controller may not evict gets an Event about that', async () => {
  setRestartAnnotation('true');
  putPod('one');
  evictionStatus = 403;
  start();
  setProblems('node-1', repaired('one'));
  await eventually(async () => (await eventsOn('Pod')).join()).toContain(
    "one Warning RestartForbidden: Not evicted, although the mount of claim 'data' was lost and remounted: Stowage may not evict pods in this namespace. Restart the pod yourself.",
  );
  expect(evicted).toEqual([]);
});

test('a pod that was restarted before its disruption budget allowed the eviction is not evicted', async () => {
  setRestartAnnotation('true');
  putPod('one');
  evictionStatus = 429;
  start();
  setProblems('node-1', repaired('one'));
  const evictionCount = () => fixture.api.requests.filter((one) => one.endsWith('/eviction')).length;
  await eventually(evictionCount).toBeGreaterThan(0);
  putPod('one', 'node-1', '2026-01-01T12:00:05Z');
  await eventually(condition).toMatchObject({ status: 'True' });
  evictionStatus = undefined;
  const { length } = agents.requests;
  await eventually(() => {
    evictionClockMs += 5_000;
    return agents.requests.length;
  }).toBeGreaterThan(length + 8);
  expect(evicted).toEqual([]);
});

test('problems of a block device and of an ephemeral volume are reported on their pods', async () => {
  putPod('block');
  const target = `/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/${uidOf('block')}`;
  const ephemeralId = 'sv1-00000000-0000-4000-8000-000000000002';
  fixture.api.put(podsPath, {
    metadata: { name: 'inline', uid: uidOf('inline') },
    spec: { nodeName: 'node-1', volumes: [{ name: 'scratch', csi: { driver: 'file.stowage.dev' } }] },
  });
  start();
  setProblems('node-1', problem('block', { target }), problem('inline', { volume: ephemeralId }));
  await eventually(async () => (await eventsOn('Pod')).map((one) => one.split(':')[0]).toSorted()).toEqual([
    'block Warning VolumeConditionAbnormal',
    'inline Warning VolumeConditionAbnormal',
  ]);
  expect((await eventsOn('Pod')).join()).toContain('A volume of the pod is unhealthy on node-1');
});

test('a store has a condition for its mounts on nodes, and keeps it while the health is unknown', async () => {
  const recorded = { type: 'MountsHealthy', status: 'False', reason: 'MountDead', message: 'On node-1: before.' };
  const spec = { uri: fixture.newStoreUri('gold') };
  fixture.api.put(paths.stores, {
    metadata: { name: 'gold' },
    spec,
    status: { conditions: [recorded], unhealthyNodes: ['node-1'] },
  });
  const mounts = async (): Promise<Condition | undefined> =>
    (await fixture.list(storeObjects))[0]?.status?.conditions?.find(({ type }) => type === 'MountsHealthy');
  start();
  const storeHealth = createStoreHealth({ ...fixture.parts, mountProblems });
  const nodeStores = { all: () => [], onChange: () => undefined };
  const stores = fixture.start((parts) => createStoresController({ ...parts, nodeStores, storeHealth }));
  await eventually(() => stores.counts().again).toBeGreaterThan(0);
  expect(await mounts()).toEqual(recorded);
  setProblems('node-2');
  await eventually(() => mountProblems.isConfirmed('node-2')).toBe(true);
  const { again } = stores.counts();
  stores.add('gold');
  await eventually(() => stores.counts().again).toBeGreaterThan(again);
  expect(await mounts()).toEqual(recorded);
  setProblems(
    'node-1',
    problem('web', { name: 'gold/a' }),
    problem('api', { name: 'gold/b', condition: 'dead', detail: 'y' }),
  );
  const message = 'On node-1: y. For details: kubectl stowage mounts, and the log of the agent of that node.';
  await eventually(mounts).toMatchObject({ status: 'False', reason: 'MountDead', message });
  setProblems('node-1', repaired('web'));
  await eventually(() => mountProblems.isConfirmed('node-1')).toBe(true);
  stores.add('gold');
  await eventually(mounts).toMatchObject({ status: 'True', reason: 'Well' });
  await eventually(() => eventsOn('Store')).toEqual(['gold Normal StoreWell: MountsHealthy: healthy again.']);
  setProblems('node-1', problem('web', { name: 'gold/a', detail: 'z' }));
  await eventually(mounts).toMatchObject({ status: 'False', reason: 'StoreSilent' });
  await eventually(async () => (await eventsOn('Store')).join()).toContain(
    'gold Warning StoreIll: MountsHealthy: On node-1: z.',
  );
});

test('a store with more unhealthy nodes than its message names becomes healthy when all of them have reported to the next leader', async () => {
  const nodes = nodeNames(12);
  for (const name of nodes) fixture.api.put(paths.nodes, { metadata: { name } });
  fixture.api.put(paths.stores, { metadata: { name: 'gold' }, spec: { uri: fixture.newStoreUri('gold') } });
  const mounts = async (): Promise<Condition | undefined> =>
    (await fixture.list(storeObjects))[0]?.status?.conditions?.find(({ type }) => type === 'MountsHealthy');
  const startStores = (): Controller => {
    start();
    const storeHealth = createStoreHealth({ ...fixture.parts, mountProblems });
    const nodeStores = { all: () => [], onChange: () => undefined };
    return fixture.start((parts) => createStoresController({ ...parts, nodeStores, storeHealth }));
  };
  startStores();
  for (const node of nodes) setProblems(node, problem(podNameOn(node), { name: 'gold/a' }));
  await eventually(async () => (await mounts())?.message ?? '').toContain(' and 2 more: ');
  await fixture.stepDown();
  const namedNodes = [...nodes].sort().slice(0, 10);
  for (const node of nodes) agents.disconnect(node);
  const nextLeader = startStores();
  for (const node of namedNodes) setProblems(node);
  await eventually(() => namedNodes.every((node) => mountProblems.isConfirmed(node))).toBe(true);
  const { again } = nextLeader.counts();
  nextLeader.add('gold');
  await eventually(() => nextLeader.counts().again).toBeGreaterThan(again);
  expect(await mounts()).toMatchObject({ status: 'False' });
  for (const node of nodes) setProblems(node);
  await eventually(() => nodes.every((node) => mountProblems.isConfirmed(node))).toBe(true);
  nextLeader.add('gold');
  await eventually(mounts).toMatchObject({ status: 'True' });
  expect((await fixture.list(storeObjects))[0]?.status?.unhealthyNodes).toBeUndefined();
});

test('each condition of a store gets its own Event, also if several change at the same moment', async () => {
  start();
  createStoreHealth({ ...fixture.parts, mountProblems });
  const put = (status: string): void => {
    const conditions = ['Ready', 'MountsHealthy'].map((type) => ({ type, status, reason: 'x', message: `${type} x` }));
    fixture.api.put(paths.stores, { metadata: { name: 'gold' }, spec: { uri: 'x' }, status: { conditions } });
  };
  put('True');
  await eventually(() => fixture.caches.stores.get('gold')).toBeDefined();
  put('False');
  await eventually(async () => (await eventsOn('Store')).toSorted()).toEqual([
    'gold Warning StoreIll: MountsHealthy: MountsHealthy x',
    'gold Warning StoreIll: Ready: Ready x',
  ]);
});

test('malformed problems in the answer of an agent are ignored', async () => {
  putPod('web');
  start();
  const malformedItems = [
    null,
    1,
    {},
    { user: 1 },
    problem('web', { volume: '../x' }),
    problem('web', { condition: 'fine' }),
  ];
  for (const [index, items] of [malformedItems, 'x', undefined].entries()) {
    agents.connect('node-1', () => ({ items }));
    await eventually(() => agents.requests.length).toBeGreaterThan(3 * (index + 1));
  }
  agents.connect('node-1', () => 'x');
  await eventually(() => mountProblems.isConfirmed('node-1')).toBe(true);
  expect([...mountProblems.all()]).toEqual([]);
});
