import { beforeEach, expect, test } from 'vitest';
import type { NodeName, Use, Volume } from '#core/model.ts';
import { controlled, eventually, paths } from '#testing/controlled.ts';
import { aCall } from '#testing/server.ts';
import { createNodeLoss } from './node-loss.ts';

const it = controlled();
let volume: Volume;

const use = (host: string, node: string, kind: Use['users'][number]['kind'] = 'pod'): Promise<void> | undefined =>
  it.engine.stores
    .view('silver')
    .store?.uses?.put(volume, { host, node: node as NodeName, users: [{ kind, name: 'x' }] }, aCall());
const hosts = async (): Promise<readonly string[]> =>
  ((await it.engine.uses.of(volume, aCall())) ?? []).map(({ host }) => host).sort();
const node = (name: string, ...taints: readonly string[]) => ({
  metadata: { name },
  spec: { taints: taints.map((key) => ({ key, effect: 'NoExecute' })) },
});

beforeEach(async () => {
  const spec = { store: 'silver', name: 'a', bytes: 1n, access: undefined, labels: {} };
  volume = await it.engine.volumes.create(spec, aCall());
  const csi = { driver: 'file.stowage.dev', volumeHandle: volume.id };
  it.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { csi, claimRef: { uid: 'u' } } });
  // Gone, and its store has answered.
  const gone = { driver: 'file.stowage.dev', volumeHandle: 'sv1-00000000-0000-4000-8000-000000000000' };
  it.api.put(paths.volumes, { metadata: { name: 'pvc-2' }, spec: { csi: gone, claimRef: { uid: 'v' } } });
  await use('host-1', 'node-1');
  await use('host-2', 'node-2', 'kubelet');
  await use('host-3', 'node-1', 'container');
  it.api.put(paths.nodes, node('node-1'));
  it.api.put(paths.nodes, node('node-2'));
});

test('a node that is deleted no longer uses anything; others, and machines of that name, do', async () => {
  const controller = it.start(createNodeLoss);
  await eventually(() => controller.counts().done).toBe(2);
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
  it.api.remove(paths.nodes, 'node-1');
  await eventually(() => it.notes('VolumesReleased')).toHaveLength(1);
  expect(await hosts()).toEqual(['host-2', 'host-3']);
});

test('nor does one that is said to be out of service, also before we looked', async () => {
  it.api.put(paths.nodes, node('node-2', 'node.kubernetes.io/out-of-service'));
  it.start(createNodeLoss);
  await eventually(hosts).toEqual(['host-1', 'host-3']);
});

test('one that is only unreachable still counts', async () => {
  it.api.put(paths.nodes, node('node-2', 'node.kubernetes.io/unreachable'));
  const controller = it.start(createNodeLoss);
  await eventually(() => controller.counts().done).toBe(2);
  expect(await hosts()).toEqual(['host-1', 'host-2', 'host-3']);
});

test('one that only we do not see counts', async () => {
  const controller = it.start(createNodeLoss);
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
