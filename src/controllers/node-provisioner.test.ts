import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { nodeTopologyKey } from '#core/node-topology.ts';
import type { AgentNode } from '#testing/agent-nodes.ts';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { AnyObject } from '#testing/fakes/kube-objects.ts';
import { aLocalClaim, aLocalClass, localClaims, moveStore, volumeCounts } from '#testing/local-claims.ts';
import { claims } from '#wire/kube/resources.ts';
import { volumeFinalizer } from './names.ts';
import { createNodeVolumes } from './node-volumes.ts';

const fixture = controllerFixture();
const { twoNodes, startLeader, volumes, claimsWithVolumes, provision } = localClaims(fixture);
const gib = 1024n ** 3n;

describe('a claim whose PersistentVolume cannot be written', () => {
  const refusePersistentVolumes = (): void => {
    fixture.api.intercept = (request, response) => {
      const isVolumeWrite = request.method === 'POST' && request.url === paths.volumes;
      if (isVolumeWrite) fixture.api.refuse(response, 503, 'ServiceUnavailable');
      return isVolumeWrite;
    };
  };

  test('keeps the volume if a PersistentVolume that is not in the cache yet refers to it by store and name', async () => {
    const [one] = await twoNodes();
    refusePersistentVolumes();
    fixture.api.put(paths.classes, aLocalClass());
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    const { provisioning } = startLeader();
    await eventually(() => volumeCounts(one)).toEqual([1]);
    const csi = { driver: 'local.stowage.dev', volumeHandle: 'disks..pvc-uid-of-data' };
    const claimRef = { namespace: 'shop', name: 'data', uid: 'uid-of-data' };
    const items = [{ metadata: { name: 'by-hand' }, spec: { csi, claimRef, storageClassName: 'fast' } }];
    let lists = 0;
    const refuse = fixture.api.intercept;
    fixture.api.intercept = (request, response, body) => {
      const { method, url = '' } = request;
      if (method !== 'GET' || !url.startsWith(`${paths.volumes}?limit`))
        return refuse?.(request, response, body) === true;
      lists++;
      const list = { kind: 'List', metadata: { resourceVersion: '100' }, items };
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
      return true;
    };
    fixture.api.put(paths.claims, aClaim('data', { volumeName: 'by-hand' }));
    await eventually(() => lists).toBe(1);
    await eventually(() => provisioning.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(fixture.agents.requests.filter((one) => one.includes('DELETE'))).toEqual([]);
    expect(await volumeCounts(one)).toEqual([1]);
  });

  test.each([
    ['', ''],
    [', even if the store retains deleted volumes', '?onDelete=retain'],
  ])('leaves no volume behind when it is deleted%s', async (_, options) => {
    const [one] = await twoNodes(options);
    refusePersistentVolumes();
    fixture.api.put(paths.classes, aLocalClass());
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    startLeader();
    await eventually(() => volumeCounts(one)).toEqual([1]);
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await eventually(() => volumeCounts(one)).toEqual([0]);
    expect(readdirSync(join(one.server.folder, 'disks')).filter((name) => !name.startsWith('.'))).toEqual([]);
  });
});

describe('a volume of a node', () => {
  const updatePersistentVolume = async (change: object = {}): Promise<void> => {
    const [volume] = await volumes();
    if (volume === undefined) throw new Error('there is no PersistentVolume');
    const { metadata, spec } = volume;
    fixture.api.put(paths.volumes, { metadata, spec, ...change });
  };

  async function twoNodesWithVolume(...options: readonly string[]): Promise<readonly [AgentNode, AgentNode]> {
    const nodes = await twoNodes(...options);
    fixture.api.put(paths.classes, aLocalClass());
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    startLeader();
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    return nodes;
  }

  test('is deleted on its node', async () => {
    const [one] = await twoNodesWithVolume();
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await updatePersistentVolume({ status: { phase: 'Released' } });
    await eventually(claimsWithVolumes).toEqual([]);
    expect(await volumeCounts(one)).toEqual([0]);
  });

  test('is deleted again with its next PersistentVolume after it was restored', async () => {
    const [one] = await twoNodesWithVolume('?onDelete=archive&retention=7d');
    const [persistentVolume] = await volumes();
    const [{ id } = { id: '' }] = await one.volumes();
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await updatePersistentVolume({ status: { phase: 'Released' } });
    await eventually(claimsWithVolumes).toEqual([]);
    expect(await volumeCounts(one)).toEqual([0]);
    await one.server.core.deletions.restore(id, undefined, () => true, aCall());
    expect(await volumeCounts(one)).toEqual([1]);
    const metadata = { name: 'restored', uid: 'uid-of-restored', annotations: persistentVolume?.metadata.annotations };
    fixture.api.put(paths.volumes, {
      metadata,
      spec: persistentVolume?.spec,
      status: { phase: 'Released' },
    } as AnyObject);
    await eventually(claimsWithVolumes).toEqual([]);
    expect(await volumeCounts(one)).toEqual([0]);
  });

  test.each<[string, object, number]>([
    ['stays while another PersistentVolume of its node refers to it', { values: ['node-2', 'node-1'] }, 1],
    ['stays while another PersistentVolume that names no node refers to it', { key: 'zone', values: ['a'] }, 1],
    [
      'is deleted while another PersistentVolume refers to the volume of that name on another node',
      { values: ['node-2'] },
      0,
    ],
  ])('%s by store and name', async (_, expression, expectedCount) => {
    const [one] = await twoNodesWithVolume();
    const term = { matchExpressions: [{ key: nodeTopologyKey, operator: 'In', ...expression }] };
    const csi = { driver: 'local.stowage.dev', volumeHandle: 'disks..pvc-uid-of-data' };
    const nodeAffinity = { required: { nodeSelectorTerms: [term] } };
    fixture.api.put(paths.volumes, { metadata: { name: 'by-hand' }, spec: { csi, nodeAffinity } });
    await eventually(() => fixture.caches.volumes.get('by-hand')).not.toBe(undefined);
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    const persistentVolume = (await volumes()).find(({ metadata }) => metadata.name === 'pvc-uid-of-data');
    fixture.api.put(paths.volumes, { ...persistentVolume, status: { phase: 'Released' } } as AnyObject);
    if (expectedCount === 0) await eventually(claimsWithVolumes).toEqual(['by-hand']);
    else
      await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain(
        "PersistentVolume 'by-hand' refers to the same volume",
      );
    expect(await volumeCounts(one)).toEqual([expectedCount]);
  });

  test('is deleted on its node, regardless of the labels of other nodes', async () => {
    const [one, two] = await twoNodesWithVolume();
    const nodeLabelledNode1 = (name: string) => ({
      metadata: { name, uid: `uid-of-${name}`, labels: { [nodeTopologyKey]: 'node-1' } },
    });
    fixture.api.put(paths.nodes, nodeLabelledNode1('node-2'));
    fixture.api.remove(paths.nodes, 'node-1');
    fixture.api.put(paths.nodes, nodeLabelledNode1('node-1'));
    const requestMethods: string[] = [];
    two.intercept = ({ method }) => void requestMethods.push(method);
    await eventually(() => [...fixture.caches.nodes.all()].at(-1)?.metadata.name).toBe('node-1');
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await updatePersistentVolume({ status: { phase: 'Released' } });
    await eventually(claimsWithVolumes).toEqual([]);
    expect([await volumeCounts(one), requestMethods.includes('DELETE')]).toEqual([[0], false]);
  });

  test('does not count as deleted when its node does not know the store', async () => {
    const [one] = await twoNodesWithVolume();
    await one.server.core.stores.remove('disks', aCall());
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    fixture.api.remove(paths.stores, 'disks');
    await updatePersistentVolume({ status: { phase: 'Released' } });
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toMatch(/not configured any more/);
    expect((await volumes())[0]?.metadata.finalizers).toEqual([volumeFinalizer]);
  });

  test('does not count as deleted when its store is at another location now', async () => {
    const [one] = await twoNodesWithVolume();
    await moveStore(one, 'elsewhere');
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await updatePersistentVolume({ status: { phase: 'Released' } });
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toMatch(
      /'disks' is at another location than when the volume was created/,
    );
    expect((await volumes())[0]?.metadata.finalizers).toEqual([volumeFinalizer]);
  });

  test('does not count as deleted when its store is back at its old location', async () => {
    const [one] = await twoNodes();
    fixture.api.put(paths.classes, aLocalClass());
    startLeader();
    await eventually(() => fixture.parts.nodeStores.reportOf('node-1')?.stores.size).toBe(1);
    await moveStore(one, 'elsewhere');
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    await moveStore(one, 'disks');
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await updatePersistentVolume({ status: { phase: 'Released' } });
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toMatch(
      /'disks' is at another location than when the volume was created/,
    );
    await moveStore(one, 'elsewhere');
    expect([await claimsWithVolumes(), await volumeCounts(one)]).toEqual([['pvc-uid-of-data'], [1]]);
  });

  test('is found by its own PersistentVolume when other nodes have a volume of the same name', async () => {
    const nodes = await twoNodes();
    const handle = 'disks..shared';
    for (const [index, node] of nodes.entries()) {
      await node.answer({
        method: 'POST',
        path: '/v1/volumes',
        body: { store: 'disks', name: 'shared', bytes: '1024' },
      });
      const expressions = [{ key: nodeTopologyKey, operator: 'In', values: [`node-${index + 1}`] }];
      const affinity = { nodeSelectorTerms: [{ matchExpressions: expressions }] };
      const name = `written-${index + 1}`;
      const spec = {
        capacity: { storage: '1Ki' },
        nodeAffinity: { required: affinity },
        claimRef: { namespace: 'shop', name, uid: `uid-of-${name}` },
        csi: { driver: 'local.stowage.dev', volumeHandle: handle, volumeAttributes: { store: 'disks' } },
      };
      fixture.api.put(paths.volumes, { metadata: { name }, spec, status: { phase: 'Bound' } });
    }
    const claim = aClaim('written-2', { volumeName: 'written-2', resources: { requests: { storage: '2Ki' } } });
    fixture.api.put(paths.claims, { ...claim, status: { phase: 'Bound', capacity: { storage: '1Ki' } } });
    startLeader();
    await eventually(async () => (await fixture.list(claims))[0]?.status?.capacity).toEqual({ storage: '2Ki' });
    const sizes = await Promise.all(nodes.map(async (node) => (await node.volumes())[0]?.bytes));
    expect(sizes).toEqual([1024n, 2048n]);
  });

  test('on a deleted node causes an error that says what to do', async () => {
    await twoNodesWithVolume();
    fixture.agents.disconnect('node-1');
    fixture.api.remove(paths.nodes, 'node-1');
    await eventually(() => fixture.caches.nodes.get('node-1')).toBe(undefined);
    fixture.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await updatePersistentVolume({ status: { phase: 'Released' } });
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toMatch(
      /on node 'node-1', which is no longer in the cluster.*Retain/,
    );
    expect(await volumes()).toHaveLength(1);
  });

  test('is expanded by the agent, not by the kubelet', async () => {
    const [one] = await twoNodesWithVolume();
    const claim = aClaim('data', { volumeName: 'pvc-uid-of-data', resources: { requests: { storage: '3Gi' } } });
    fixture.api.put(paths.claims, { ...claim, status: { phase: 'Bound', capacity: { storage: '1Gi' } } });
    await eventually(async () => (await fixture.list(claims))[0]?.status?.capacity).toEqual({ storage: '3Gi' });
    expect((await one.volumes())[0]?.bytes).toBe(3n * gib);
    expect((await volumes())[0]?.spec.capacity).toEqual({ storage: '3Gi' });
  });

  test('is deleted after the minimum age when its claim is gone, or has another volume', async () => {
    const [one] = await twoNodes();
    for (const name of ['gone', 'other', 'waits', 'by-hand']) await provision(name, one);
    fixture.api.put(paths.claims, aClaim('other', { volumeName: 'of-another-driver' }));
    fixture.api.put(paths.claims, aLocalClaim('waits'));
    const byHand = (await one.volumes()).find(({ name }) => (name as string) === 'by-hand');
    const csi = { driver: 'local.stowage.dev', volumeHandle: byHand?.id ?? '' };
    fixture.api.put(paths.volumes, { metadata: { name: 'written' }, spec: { csi } });
    const names = async () => (await one.volumes()).map(({ name }) => name as string).toSorted();
    const beforeMinAge = fixture.start(createNodeVolumes);
    await eventually(() => beforeMinAge.counts().again).toBe(2);
    expect(await names()).toHaveLength(4);
    fixture.start((parts) => createNodeVolumes({ ...parts, clock: createFakeClock(Date.now() + 3_600_000) }));
    await eventually(names).toEqual(['by-hand', 'waits']);
  });

  test('without a claim is deleted if it is empty, and reported otherwise', async () => {
    const [one] = await twoNodes();
    // Two volumes belong to claims that are bound on the other node, and one belongs to a pending claim.
    for (const name of ['empty', 'full', 'waits']) await provision(name, one);
    writeFileSync(join(one.server.folder, 'disks', 'full', 'file'), 'x');
    mkdirSync(join(one.server.folder, 'disks', 'not-ours'));
    for (const name of ['empty', 'full']) {
      const csi = { driver: 'local.stowage.dev', volumeHandle: `sv1-other-${name}` };
      const claimRef = { namespace: 'shop', name, uid: `uid-of-${name}` };
      fixture.api.put(paths.volumes, { metadata: { name: `pvc-uid-of-${name}` }, spec: { csi, claimRef } });
    }
    fixture.api.put(paths.claims, aLocalClaim('waits'));
    startLeader();
    await eventually(async () => (await fixture.notes('OrphanedVolumes')).join()).toMatch(
      /On node node-1, 1 volumes .*: full\./,
    );
    expect((await one.volumes()).map(({ name }) => name as string).toSorted()).toEqual(['full', 'waits']);
  });
});
