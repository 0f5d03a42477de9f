import { beforeEach, describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { NodeName, Use, Volume } from '#core/model.ts';
import { controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeAgents, type FakeAgents } from '#testing/fakes/agents.ts';
import { configMaps as configMapsOf, persistentVolumes } from '#wire/kube/resources.ts';
import type { Controller } from './machinery/controller.ts';
import { createNodeLoss } from './node-loss.ts';

const fixture = controllerFixture();
let volume: Volume;
let agents: FakeAgents;

const namespace = 'stowage-system';
const configMaps = `/api/v1/namespaces/${namespace}/configmaps`;
const start = (): Controller => fixture.start((parts) => createNodeLoss({ ...parts, agents, namespace }));

const recordUse = (host: string, node: string, kind: Use['users'][number]['kind'] = 'pod'): Promise<void> | undefined =>
  fixture.core.stores
    .view('silver')
    .store?.uses?.put(volume, { host, node: node as NodeName, users: [{ kind, name: 'x' }] }, aCall());
const hostsWithUses = async (): Promise<readonly string[]> =>
  ((await fixture.core.uses.list(volume, aCall())) ?? []).map(({ host }) => host).sort();
const aNode = (name: string, ...taints: readonly string[]) => ({
  metadata: { name },
  spec: { taints: taints.map((key) => ({ key, effect: 'NoExecute' })) },
});

beforeEach(async () => {
  agents = createFakeAgents();
  const spec = { store: 'silver', name: 'a', bytes: 1n, access: undefined, labels: {} };
  volume = await fixture.core.volumes.create(spec, aCall());
  const csi = { driver: 'file.stowage.dev', volumeHandle: volume.id };
  fixture.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { csi, claimRef: { uid: 'u' } } });
  // The volume is gone, and its store has answered.
  const missingVolume = { driver: 'file.stowage.dev', volumeHandle: 'sv1-00000000-0000-4000-8000-000000000000' };
  fixture.api.put(paths.volumes, { metadata: { name: 'pvc-2' }, spec: { csi: missingVolume, claimRef: { uid: 'v' } } });
  await recordUse('host-1', 'node-1');
  await recordUse('host-2', 'node-2', 'kubelet');
  await recordUse('host-3', 'node-1', 'container');
  fixture.api.put(paths.nodes, aNode('node-1'));
  fixture.api.put(paths.nodes, aNode('node-2'));
});

test('a deleted node loses its use records; other nodes, and machines of the same name, keep theirs', async () => {
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3']);
  fixture.api.remove(paths.nodes, 'node-1');
  await eventually(() => fixture.notes('VolumesReleased')).toHaveLength(1);
  expect(await hostsWithUses()).toEqual(['host-2', 'host-3']);
});

test('a node with the out-of-service taint loses its use records, also if it had the taint before', async () => {
  fixture.api.put(paths.nodes, aNode('node-2', 'node.kubernetes.io/out-of-service'));
  start();
  await eventually(hostsWithUses).toEqual(['host-1', 'host-3']);
});

test('a node that is only unreachable keeps its use records', async () => {
  fixture.api.put(paths.nodes, aNode('node-2', 'node.kubernetes.io/unreachable'));
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3']);
});

test('a node that is missing only in the cache keeps its use records', async () => {
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  fixture.api.intercept = ({ method, url }, response) => {
    if (method !== 'GET' || url !== `${paths.nodes}/node-1`) return false;
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(aNode('node-1')));
    return true;
  };
  fixture.api.remove(paths.nodes, 'node-1');
  await eventually(() => controller.counts().done).toBe(3);
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3']);
});

/** The recorded machines of the nodes. */
const recordedHosts = async (): Promise<Readonly<Record<string, string>> | undefined> =>
  (await fixture.list(configMapsOf)).find(({ metadata: { name } }) => name === 'stowage-nodes')?.data;
const statusOfHost = (host: string) => () => ({ instance: host, node: 'whatever it says' });
/** Writes a record, as an earlier leader did. */
const recordHosts = (data: Readonly<Record<string, string>>): void =>
  void fixture.api.put(configMaps, { metadata: { name: 'stowage-nodes' }, data });

test('the machine of a node is recorded, also when the node becomes another machine', async () => {
  const { uid } = fixture.api.put(paths.nodes, aNode('node-1')).metadata;
  start();
  agents.connect('node-1', statusOfHost('host-1'));
  await eventually(recordedHosts).toEqual({ 'host-1': `node-1 ${uid}` });
  agents.disconnect('node-1');
  agents.connect('node-1', statusOfHost('host-9'));
  // Kubernetes did not report that the first machine is gone.
  await eventually(recordedHosts).toEqual({ 'host-1': `node-1 ${uid}`, 'host-9': `node-1 ${uid}` });
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3']);
});

test('a node that was deleted without a leader loses its use records; machines outside the cluster keep theirs', async () => {
  await recordUse('host-4', 'node-4');
  await recordUse('host-5', 'node-4');
  await recordUse('host-6', 'docker-1', 'container');
  await recordUse('host-7', 'node-of-another-cluster');
  recordHosts({ 'host-4': 'node-4 its-uid', 'host-2': 'node-2 its-uid' });
  start();
  await eventually(recordedHosts).toEqual({ 'host-2': 'node-2 its-uid' });
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3', 'host-5', 'host-6', 'host-7']);
});

test('use records of another machine with the name of a deleted node stay', async () => {
  recordHosts({ 'host-1': 'node-1 its-uid' });
  await recordUse('host-4', 'node-1');
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  fixture.api.remove(paths.nodes, 'node-1');
  await eventually(recordedHosts).toEqual({});
  expect(await hostsWithUses()).toEqual(['host-2', 'host-3', 'host-4']);
});

test('a node that was recreated on another machine loses its use records; on the same machine it keeps them', async () => {
  recordHosts({ 'host-1': 'node-1 an-older-uid', 'host-2': 'node-2 an-older-uid' });
  start();
  agents.connect('node-2', statusOfHost('host-2'));
  agents.connect('node-1', statusOfHost('host-9'));
  await eventually(hostsWithUses).toEqual(['host-2', 'host-3']);
  await eventually(async () => Object.keys((await recordedHosts()) ?? {}).sort()).toEqual(['host-2', 'host-9']);
});

test('an agent cannot claim the machine of another node', async () => {
  recordHosts({ 'host-2': 'node-2 its-uid' });
  const controller = start();
  agents.connect('node-1', statusOfHost('host-2'));
  await eventually(() => agents.requests).toContain('node-1 GET /v1/status');
  fixture.api.remove(paths.nodes, 'node-1');
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  await eventually(hostsWithUses).toEqual(['host-2', 'host-3']);
  expect(await recordedHosts()).toEqual({ 'host-2': 'node-2 its-uid' });
});

test('an agent cannot claim a machine outside the cluster, whose use records name another node', async () => {
  await recordUse('host-6', 'docker-1', 'container');
  const { uid } = fixture.api.put(paths.nodes, aNode('node-1')).metadata;
  const controller = start();
  agents.connect('node-1', statusOfHost('host-6'));
  await eventually(recordedHosts).toEqual({ 'host-6': `node-1 ${uid}` });
  fixture.api.remove(paths.nodes, 'node-1');
  await eventually(recordedHosts).toEqual({});
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3', 'host-6']);
});

test('a deleted node that became the writer of a volume, and recorded no user, loses its use record', async () => {
  await fixture.core.stores.view('silver').store?.uses?.takeWriter(volume, 'host-4', aCall());
  recordHosts({ 'host-4': 'node-4 its-uid' });
  start();
  await eventually(recordedHosts).toEqual({});
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3']);
});

test.each<[string, () => void]>([
  [
    'whose taint was removed',
    () => void fixture.api.put(paths.nodes, aNode('node-2', 'node.kubernetes.io/out-of-service')),
  ],
  ['that was deleted and came back', () => fixture.api.remove(paths.nodes, 'node-2')],
])('a node %s while its volumes were being released keeps its use records', async (_, loseNode) => {
  loseNode();
  recordHosts({ 'host-2': 'node-2 its-uid' });
  let isRead = false;
  const list: typeof fixture.core.uses.list = async (asked, scope) => {
    if (!isRead) fixture.api.put(paths.nodes, aNode('node-2'));
    isRead = true;
    return await fixture.core.uses.list(asked, scope);
  };
  const core = { ...fixture.core, uses: { ...fixture.core.uses, list } };
  const controller = fixture.start((parts) => createNodeLoss({ ...parts, core, agents, namespace }));
  await eventually(() => isRead).toBe(true);
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  expect(await hostsWithUses()).toEqual(['host-1', 'host-2', 'host-3']);
  expect(await recordedHosts()).toEqual({ 'host-2': 'node-2 its-uid' });
});

test('a volume whose PersistentVolume refers to it by store and name is released too', async () => {
  const csi = { driver: 'file.stowage.dev', volumeHandle: 'silver..a' };
  fixture.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { csi, claimRef: { uid: 'u' } } });
  fixture.api.put(paths.nodes, aNode('node-2', 'node.kubernetes.io/out-of-service'));
  start();
  await eventually(hostsWithUses).toEqual(['host-1', 'host-3']);
});

test('a store that does not answer does not delay others, and is retried', async () => {
  await fixture.core.stores.add('gold', fixture.newStoreUri('gold'), aCall());
  // More volumes than the controller handles concurrently, listed before the volumes of the store that answers.
  const silver = (await fixture.list(persistentVolumes)).find(({ metadata: { name } }) => name === 'pvc-1');
  fixture.api.remove(paths.volumes, 'pvc-1');
  const goldUses = fixture.core.stores.view('gold').store?.uses;
  const lostNodeUse = { host: 'host-1', node: 'node-1' as NodeName, users: [{ kind: 'pod', name: 'x' }] } as const;
  const goldVolumes: Volume[] = [];
  for (let index = 0; index < 10; index++) {
    const spec = { store: 'gold', name: `b${index}`, bytes: 1n, access: undefined, labels: {} };
    const goldVolume = await fixture.core.volumes.create(spec, aCall());
    const csi = { driver: 'file.stowage.dev', volumeHandle: goldVolume.id };
    fixture.api.put(paths.volumes, {
      metadata: { name: goldVolume.name },
      spec: { csi, claimRef: { uid: goldVolume.name } },
    });
    await goldUses?.put(goldVolume, lostNodeUse, aCall());
    goldVolumes.push(goldVolume);
  }
  fixture.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { ...silver?.spec } });
  let isSilent = true;
  const silent = new StowageError('no answer', { code: 'unavailable', reason: 'store-silent', action: '' });
  const list: typeof fixture.core.uses.list = async (asked, scope) => {
    if (isSilent && asked.store === 'gold') throw silent;
    return await fixture.core.uses.list(asked, scope);
  };
  const core = { ...fixture.core, uses: { ...fixture.core.uses, list } };
  fixture.api.remove(paths.nodes, 'node-1');
  recordHosts({ 'host-1': 'node-1 its-uid' });
  const controller = fixture.start((parts) => createNodeLoss({ ...parts, core, agents, namespace }));
  await eventually(hostsWithUses).toEqual(['host-2', 'host-3']);
  await eventually(() => controller.counts().retried).toBeGreaterThan(0);
  expect(await recordedHosts()).toEqual({ 'host-1': 'node-1 its-uid' });
  isSilent = false;
  await eventually(recordedHosts).toEqual({});
  for (const { id } of goldVolumes) expect(await goldUses?.list(id, aCall())).toEqual([]);
});

test('a retained volume without a PersistentVolume is released too', async () => {
  const spec = { store: 'silver', name: 'kept', bytes: 1n, access: undefined, labels: {} };
  const ownLabels = { 'stowage.dev/cluster': fixture.core.instance };
  const retained = await fixture.core.volumes.create({ ...spec, ownLabels }, aCall());
  const uses = fixture.core.stores.view('silver').store?.uses;
  await uses?.put(retained, { host: 'host-1', node: 'node-1' as NodeName, users: [] }, aCall());
  const controller = start();
  await eventually(() => controller.counts().done).toBe(2);
  fixture.api.remove(paths.nodes, 'node-1');
  await eventually(() => uses?.list(retained.id, aCall())).toEqual([]);
});

describe('an ephemeral volume of a pod', () => {
  const createEphemeral = async (name: string, host: string): Promise<Volume> => {
    const spec = { store: 'silver', name, bytes: 1n, access: undefined, labels: {} };
    const created = await fixture.core.volumes.create(
      { ...spec, ownLabels: { 'stowage.dev/ephemeral': 'true' } },
      aCall(),
    );
    // Make it look as if that machine had created the volume.
    await fixture.core.stores.view('silver').store?.adoption?.claim(created, host, aCall());
    await volumeNames();
    expect(fixture.core.records.volumes.byId(created.id)?.instance).toBe(host);
    return created;
  };
  const volumeNames = async (): Promise<readonly string[]> => (await fixture.volumes()).map(({ name }) => name);

  test('is deleted with its node, and volumes of other machines stay', async () => {
    await createEphemeral('x', 'host-4');
    await createEphemeral('y', 'host-5');
    recordHosts({ 'host-4': 'node-4 its-uid' });
    start();
    await eventually(volumeNames).toEqual(['a', 'y']);
    await eventually(recordedHosts).toEqual({});
  });

  test('stays while its machine still renews its use, or when the node is only out of service', async () => {
    const usedVolume = await createEphemeral('x', 'host-4');
    await createEphemeral('z', 'host-2');
    await fixture.core.stores
      .view('silver')
      .store?.uses?.put(usedVolume, { host: 'host-4', node: 'node-4' as NodeName, users: [] }, aCall());
    recordHosts({ 'host-4': 'node-4 its-uid', 'host-2': 'node-2 its-uid' });
    fixture.api.put(paths.nodes, aNode('node-2', 'node.kubernetes.io/out-of-service'));
    const controller = start();
    await eventually(() => controller.counts().again).toBe(2);
    await eventually(hostsWithUses).toEqual(['host-1', 'host-3']);
    expect(await volumeNames()).toEqual(['a', 'x', 'z']);
    expect(Object.keys((await recordedHosts()) ?? {})).toEqual(['host-4', 'host-2']);
  });
});
