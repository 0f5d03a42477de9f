import { beforeEach, describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { NodeName, Use, Volume } from '#core/model.ts';
import { controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeAgents, type FakeAgents } from '#testing/fakes/agents.ts';
import { configMaps as configMapsOf, persistentVolumes } from '#wire/kube/resources.ts';
import type { Controller } from './machinery/controller.ts';
import { createNodeLoss } from './node-loss.ts';

const it = controllerFixture();
let volume: Volume;
let agents: FakeAgents;

const namespace = 'stowage-system';
const configMaps = `/api/v1/namespaces/${namespace}/configmaps`;
const start = (): Controller => it.start((parts) => createNodeLoss({ ...parts, agents, namespace }));

const use = (host: string, node: string, kind: Use['users'][number]['kind'] = 'pod'): Promise<void> | undefined =>
  it.core.stores
    .view('silver')
    .store?.uses?.put(volume, { host, node: node as NodeName, users: [{ kind, name: 'x' }] }, aCall());
const hosts = async (): Promise<readonly string[]> =>
  ((await it.core.uses.list(volume, aCall())) ?? []).map(({ host }) => host).sort();
const node = (name: string, ...taints: readonly string[]) => ({
  metadata: { name },
  spec: { taints: taints.map((key) => ({ key, effect: 'NoExecute' })) },
});

beforeEach(async () => {
  agents = createFakeAgents();
  const spec = { store: 'silver', name: 'a', bytes: 1n, access: undefined, labels: {} };
  volume = await it.core.volumes.create(spec, aCall());
  const csi = { driver: 'file.stowage.dev', volumeHandle: volume.id };
  it.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { csi, claimRef: { uid: 'u' } } });
  // The volume is gone, and its store has answered.
  const gone = { driver: 'file.stowage.dev', volumeHandle: 'sv1-00000000-0000-4000-8000-000000000000' };
  it.api.put(paths.volumes, { metadata: { name: 'pvc-2' }, spec: { csi: gone, claimRef: { uid: 'v' } } });
  await use('host-1', 'node-1');
  await use('host-2', 'node-2', 'kubelet');
  await use('host-3', 'node-1', 'container');
  it.api.put(paths.nodes, node('node-1'));
  it.api.put(paths.nodes, node('node-2'));
});

test('a deleted node loses its use records; other nodes, and machines of the same name, keep theirs', async () => {
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
  it.api.remove(paths.nodes, 'node-1');
  await eventually(() => it.notes('VolumesReleased')).toHaveLength(1);
  expect(await hosts()).toEqual(['host-2', 'host-3']);
});

test('a node with the out-of-service taint loses its use records, also if it had the taint before', async () => {
  it.api.put(paths.nodes, node('node-2', 'node.kubernetes.io/out-of-service'));
  start();
  await eventually(hosts).toEqual(['host-1', 'host-3']);
});

test('a node that is only unreachable keeps its use records', async () => {
  it.api.put(paths.nodes, node('node-2', 'node.kubernetes.io/unreachable'));
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
});

test('a node that only the cache misses keeps its use records', async () => {
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  it.api.intercept = ({ method, url }, response) => {
    if (method !== 'GET' || url !== `${paths.nodes}/node-1`) return false;
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(node('node-1')));
    return true;
  };
  it.api.remove(paths.nodes, 'node-1');
  await eventually(() => controller.counts().done).toBe(3);
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
});

/** The recorded machines of the nodes. */
const known = async (): Promise<Readonly<Record<string, string>> | undefined> =>
  (await it.list(configMapsOf)).find(({ metadata: { name } }) => name === 'stowage-nodes')?.data;
const isMachine = (host: string) => () => ({ instance: host, node: 'whatever it says' });
/** Writes a record, as an earlier leader did. */
const knew = (data: Readonly<Record<string, string>>): void =>
  void it.api.put(configMaps, { metadata: { name: 'stowage-nodes' }, data });

test('the machine of a node is recorded, also when the node becomes another machine', async () => {
  const { uid } = it.api.put(paths.nodes, node('node-1')).metadata;
  start();
  agents.connect('node-1', isMachine('host-1'));
  await eventually(known).toEqual({ 'host-1': `node-1 ${uid}` });
  agents.lose('node-1');
  agents.connect('node-1', isMachine('host-9'));
  // Kubernetes did not report that the first machine is gone.
  await eventually(known).toEqual({ 'host-1': `node-1 ${uid}`, 'host-9': `node-1 ${uid}` });
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
});

test('a node that was deleted without a leader loses its use records; machines outside the cluster keep theirs', async () => {
  await use('host-4', 'node-4');
  await use('host-5', 'node-4');
  await use('host-6', 'docker-1', 'container');
  await use('host-7', 'node-of-another-cluster');
  knew({ 'host-4': 'node-4 its-uid', 'host-2': 'node-2 its-uid' });
  start();
  await eventually(known).toEqual({ 'host-2': 'node-2 its-uid' });
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3', 'host-5', 'host-6', 'host-7']);
});

test('use records of another machine with the name of a deleted node stay', async () => {
  knew({ 'host-1': 'node-1 its-uid' });
  await use('host-4', 'node-1');
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  it.api.remove(paths.nodes, 'node-1');
  await eventually(known).toEqual({});
  expect(await hosts()).toEqual(['host-2', 'host-3', 'host-4']);
});

test('a node that was recreated on another machine loses its use records; on the same machine it keeps them', async () => {
  knew({ 'host-1': 'node-1 an-older-uid', 'host-2': 'node-2 an-older-uid' });
  start();
  agents.connect('node-2', isMachine('host-2'));
  agents.connect('node-1', isMachine('host-9'));
  await eventually(hosts).toEqual(['host-2', 'host-3']);
  await eventually(async () => Object.keys((await known()) ?? {}).sort()).toEqual(['host-2', 'host-9']);
});

test('an agent cannot claim the machine of another node', async () => {
  knew({ 'host-2': 'node-2 its-uid' });
  const controller = start();
  agents.connect('node-1', isMachine('host-2'));
  await eventually(() => agents.requests).toContain('node-1 GET /v1/status');
  it.api.remove(paths.nodes, 'node-1');
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  await eventually(hosts).toEqual(['host-2', 'host-3']);
  expect(await known()).toEqual({ 'host-2': 'node-2 its-uid' });
});

test('an agent cannot claim a machine outside the cluster, whose use records name it', async () => {
  await use('host-6', 'docker-1', 'container');
  const { uid } = it.api.put(paths.nodes, node('node-1')).metadata;
  const controller = start();
  agents.connect('node-1', isMachine('host-6'));
  await eventually(known).toEqual({ 'host-6': `node-1 ${uid}` });
  it.api.remove(paths.nodes, 'node-1');
  await eventually(known).toEqual({});
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3', 'host-6']);
});

test('a deleted node that only became the writer of a volume loses it', async () => {
  await it.core.stores.view('silver').store?.uses?.takeWriter(volume, 'host-4', aCall());
  knew({ 'host-4': 'node-4 its-uid' });
  start();
  await eventually(known).toEqual({});
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
});

test.each<[string, () => void]>([
  ['whose taint was removed', () => void it.api.put(paths.nodes, node('node-2', 'node.kubernetes.io/out-of-service'))],
  ['that was deleted and came back', () => it.api.remove(paths.nodes, 'node-2')],
])('a node %s while its volumes were being released keeps them', async (_, lose) => {
  lose();
  knew({ 'host-2': 'node-2 its-uid' });
  let isLooked = false;
  const of: typeof it.core.uses.list = async (asked, scope) => {
    if (!isLooked) it.api.put(paths.nodes, node('node-2'));
    isLooked = true;
    return await it.core.uses.list(asked, scope);
  };
  const core = { ...it.core, uses: { ...it.core.uses, of } };
  const controller = it.start((parts) => createNodeLoss({ ...parts, core, agents, namespace }));
  await eventually(() => isLooked).toBe(true);
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
  expect(await known()).toEqual({ 'host-2': 'node-2 its-uid' });
});

test('a volume whose PersistentVolume refers to it by store and name is released too', async () => {
  const csi = { driver: 'file.stowage.dev', volumeHandle: 'silver..a' };
  it.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { csi, claimRef: { uid: 'u' } } });
  it.api.put(paths.nodes, node('node-2', 'node.kubernetes.io/out-of-service'));
  start();
  await eventually(hosts).toEqual(['host-1', 'host-3']);
});

test('a store that does not answer does not delay others, and is retried', async () => {
  await it.core.stores.add('gold', it.place('gold'), aCall());
  // More volumes than the controller asks for concurrently, listed before those of the store that answers.
  const silver = (await it.list(persistentVolumes)).find(({ metadata: { name } }) => name === 'pvc-1');
  it.api.remove(paths.volumes, 'pvc-1');
  const its = it.core.stores.view('gold').store?.uses;
  const gone = { host: 'host-1', node: 'node-1' as NodeName, users: [{ kind: 'pod', name: 'x' }] } as const;
  const golden: Volume[] = [];
  for (let index = 0; index < 10; index++) {
    const spec = { store: 'gold', name: `b${index}`, bytes: 1n, access: undefined, labels: {} };
    const made = await it.core.volumes.create(spec, aCall());
    const csi = { driver: 'file.stowage.dev', volumeHandle: made.id };
    it.api.put(paths.volumes, { metadata: { name: made.name }, spec: { csi, claimRef: { uid: made.name } } });
    await its?.put(made, gone, aCall());
    golden.push(made);
  }
  it.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { ...silver?.spec } });
  let isSilent = true;
  const silent = new StowageError('no answer', { code: 'unavailable', reason: 'store-silent', action: '' });
  const of: typeof it.core.uses.list = async (asked, scope) => {
    if (isSilent && asked.store === 'gold') throw silent;
    return await it.core.uses.list(asked, scope);
  };
  const core = { ...it.core, uses: { ...it.core.uses, of } };
  it.api.remove(paths.nodes, 'node-1');
  knew({ 'host-1': 'node-1 its-uid' });
  const controller = it.start((parts) => createNodeLoss({ ...parts, core, agents, namespace }));
  await eventually(hosts).toEqual(['host-2', 'host-3']);
  await eventually(() => controller.counts().retried).toBeGreaterThan(0);
  expect(await known()).toEqual({ 'host-1': 'node-1 its-uid' });
  isSilent = false;
  await eventually(known).toEqual({});
  for (const { id } of golden) expect(await its?.list(id, aCall())).toEqual([]);
});

test('a retained volume without a PersistentVolume is released too', async () => {
  const spec = { store: 'silver', name: 'kept', bytes: 1n, access: undefined, labels: {} };
  const ownLabels = { 'stowage.dev/cluster': it.core.instance };
  const kept = await it.core.volumes.create({ ...spec, ownLabels }, aCall());
  const its = it.core.stores.view('silver').store?.uses;
  await its?.put(kept, { host: 'host-1', node: 'node-1' as NodeName, users: [] }, aCall());
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  it.api.remove(paths.nodes, 'node-1');
  await eventually(() => its?.list(kept.id, aCall())).toEqual([]);
});

describe('an ephemeral volume of a pod', () => {
  const ephemeral = async (name: string, host: string): Promise<Volume> => {
    const spec = { store: 'silver', name, bytes: 1n, access: undefined, labels: {} };
    const made = await it.core.volumes.create({ ...spec, ownLabels: { 'stowage.dev/ephemeral': 'true' } }, aCall());
    // Make it look as if that machine had created the volume.
    await it.core.stores.view('silver').store?.adoption?.claim(made, host, aCall());
    await names();
    expect(it.core.records.volumes.byId(made.id)?.instance).toBe(host);
    return made;
  };
  const names = async (): Promise<readonly string[]> => (await it.volumes()).map(({ name }) => name);

  test('is deleted with its node, and no other is', async () => {
    await ephemeral('x', 'host-4');
    await ephemeral('y', 'host-5');
    knew({ 'host-4': 'node-4 its-uid' });
    start();
    await eventually(names).toEqual(['a', 'y']);
    await eventually(known).toEqual({});
  });

  test('stays while its machine still renews its use, or when the node is only out of service', async () => {
    const used = await ephemeral('x', 'host-4');
    await ephemeral('z', 'host-2');
    await it.core.stores
      .view('silver')
      .store?.uses?.put(used, { host: 'host-4', node: 'node-4' as NodeName, users: [] }, aCall());
    knew({ 'host-4': 'node-4 its-uid', 'host-2': 'node-2 its-uid' });
    it.api.put(paths.nodes, node('node-2', 'node.kubernetes.io/out-of-service'));
    const controller = start();
    await eventually(() => controller.counts().again).toBe(2);
    await eventually(hosts).toEqual(['host-1', 'host-3']);
    expect(await names()).toEqual(['a', 'x', 'z']);
    expect(Object.keys((await known()) ?? {})).toEqual(['host-4', 'host-2']);
  });
});
