import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { type AgentNode, anAgentNode } from '#testing/agent-nodes.ts';
import { controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { events, persistentVolumes } from '#wire/kube/resources.ts';
import { createDeleting } from './deleting.ts';
import { volumeFinalizer } from './names.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeVolumes, type NodeVolumes } from './node-volumes.ts';

const fixture = controllerFixture();
const clockAnHourAhead = () => ({ ...fixture.parts.clock, now: () => Date.now() + 3_600_000 });
const start = (): NodeVolumes => fixture.start((parts) => createNodeVolumes({ ...parts, clock: clockAnHourAhead() }));

/** Creates a volume as for a claim of that name. */
async function createVolumeOn(node: AgentNode, name: string, more: object = {}): Promise<Volume> {
  const ownLabels = {
    'stowage.dev/claim-uid': `uid-of-${name}`,
    'stowage.dev/cluster': fixture.parts.cluster,
    'stowage.dev/claim-namespace': 'shop',
    'stowage.dev/claim-name': name,
  };
  const body = { store: 'disks', name, ownLabels, ...more };
  return (await node.answer({ method: 'POST', path: '/v1/volumes', body })) as Volume;
}

const namesOn = async (node: AgentNode): Promise<readonly string[]> => (await node.volumes()).map(({ name }) => name);

/** Searches the node for orphans, and returns the volumes that are left. */
async function searchNode(node: AgentNode): Promise<readonly string[]> {
  const nodeVolumes = start();
  await eventually(() => nodeVolumes.counts().again).toBeGreaterThan(0);
  return await namesOn(node);
}

beforeEach(() => {
  fixture.api.put(paths.stores, { metadata: { name: 'disks', uid: 'uid-of-disks' }, spec: { uri: 'local:///disks' } });
});

test('an orphan directory is deleted if it is empty, and reported otherwise', async () => {
  const node = await anAgentNode(fixture, 'node-1');
  await createVolumeOn(node, 'nothing');
  await createVolumeOn(node, 'something');
  writeFileSync(join(node.server.folder, 'disks', 'something', 'file'), '');
  expect(await searchNode(node)).toEqual(['something']);
  await eventually(async () => (await fixture.notes('OrphanedVolumes')).join()).toContain(
    'On node node-1, 1 volumes belong to no claim and no PersistentVolume of this cluster, and contain or may contain data: something.',
  );
});

test('orphans on different nodes get separate Events', async () => {
  const names = ['node-1', 'node-2'];
  for (const name of names) {
    const node = await anAgentNode(fixture, name);
    await createVolumeOn(node, `of-${name}`);
    writeFileSync(join(node.server.folder, 'disks', `of-${name}`, 'file'), '');
  }
  start();
  // Events with different `related` objects do not replace each other.
  const notes = async () =>
    (await fixture.list(events)).map(({ related, note }) => `${related?.name}: ${note}`).toSorted();
  await eventually(notes).toEqual(names.map((name) => expect.stringContaining(`${name}: On node ${name}, 1 volumes`)));
});

test('a volume stays if a PersistentVolume refers to it by store and name, even if the PersistentVolume is not in the cache yet', async () => {
  const node = await anAgentNode(fixture, 'node-1');
  for (const name of ['known', 'untold', 'nobodys']) await createVolumeOn(node, name);
  const byHand = (name: string) => ({
    metadata: { name: `by-hand-${name}` },
    spec: {
      csi: { driver: 'local.stowage.dev', volumeHandle: `disks..${name}` },
      claimRef: { namespace: 'shop', name: 'new', uid: 'uid-of-new' },
    },
    status: { phase: 'Bound' },
  });
  fixture.api.put(paths.volumes, byHand('known'));
  let lists = 0;
  fixture.api.intercept = ({ url = '' }, response) => {
    if (!url.startsWith(`${paths.volumes}?limit`) || url.includes('watch')) return false;
    lists++;
    if (lists === 1) return false;
    const list = { kind: 'List', metadata: { resourceVersion: '100' }, items: [byHand('untold')] };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
    return true;
  };
  expect(await searchNode(node)).toEqual(['known', 'untold']);
  expect(await fixture.notes('OrphanedVolumes')).toEqual([]);
});

test.each<[string, (page: number) => object]>([
  [
    'pages without end',
    (page) => ({ items: Array.from({ length: 500 }, (_, i) => listedVolume(`${page}-${i}`)), next: 'more' }),
  ],
  ['empty pages', () => ({ items: [], next: 'more' })],
  [
    'more volumes than the controller asked for',
    () => ({ items: Array.from({ length: 501 }, (_, i) => listedVolume(`${i}`)) }),
  ],
  [
    'labels that no volume can have',
    () => ({ items: [{ ...listedVolume('a'), labels: { long: 'x'.repeat(2_000) } }] }),
  ],
])('an answer with %s is refused, and not kept in memory', async (_, page) => {
  const node = await anAgentNode(fixture, 'node-1');
  let pages = 0;
  node.intercept = ({ path }) => (path.startsWith('/v1/volumes?') ? page(pages++) : undefined);
  const nodeVolumes = start();
  await eventually(() => nodeVolumes.counts().retried + nodeVolumes.counts().terminal).toBeGreaterThan(0);
  expect([nodeVolumes.isSearched('node-1'), nodeVolumes.nodesWithVolumeFor('uid-of-0-0')]).toEqual([false, []]);
  expect(pages).toBeLessThan(1_000);
});

const listedVolume = (name: string) => ({
  id: `sv1-${randomUUID()}`,
  store: 'disks',
  name,
  access: 'filesystem',
  createdAt: '2026-01-01T00:00:00Z',
  labels: { 'stowage.dev/claim-uid': `uid-of-${name}` },
});

describe.skipIf(lacks('ext4'))('an orphan image', () => {
  let node: AgentNode;
  const bytes = String(16 * 1024 * 1024);
  beforeEach(async () => {
    node = await anAgentNode(fixture, 'node-1', '?layout=image&filesystem=ext4');
  });
  /** Records the first use, as a publish does before it mounts. */
  const recordFirstUse = async (volume: Volume): Promise<void> =>
    node.server.core.stores.view('disks').store?.markUsed?.(volume, aCall());

  test.each(['filesystem', 'block'])(
    'is deleted if it was never mounted, and reported otherwise (%s)',
    async (access) => {
      await createVolumeOn(node, 'unused', { bytes, access });
      await recordFirstUse(await createVolumeOn(node, 'used', { bytes, access }));
      expect(await searchNode(node)).toEqual(['used']);
      await eventually(async () => (await fixture.notes('OrphanedVolumes')).join()).toContain(
        'contain or may contain data: used.',
      );
    },
  );

  test('stays if the agent is too old for the atomic delete-if-empty', async () => {
    await createVolumeOn(node, 'a', { bytes });
    const requests: string[] = [];
    node.intercept = ({ method, path }) => {
      requests.push(`${method} ${path}`);
      if (!path.endsWith('/empty')) return undefined;
      throw new StowageError('no such route', { code: 'not-found', reason: 'path-unknown', action: '' });
    };
    expect([await searchNode(node), requests.some((one) => /^DELETE .*(?<!\/empty)$/.test(one))]).toEqual([
      ['a'],
      false,
    ]);
  });
});

describe('a volume with the reclaim policy Retain', () => {
  let node: AgentNode;
  const finalizers = async (): Promise<readonly string[] | undefined> =>
    (await fixture.list(persistentVolumes))[0]?.metadata.finalizers;

  async function createDeletedVolume(): Promise<void> {
    node = await anAgentNode(fixture, 'node-1');
    const { id } = await createVolumeOn(node, 'kept');
    const values = ['node-1'];
    const term = { matchExpressions: [{ key: 'local.stowage.dev/node', operator: 'In', values }] };
    fixture.api.put(paths.volumes, {
      metadata: {
        name: 'pvc-uid-of-kept',
        finalizers: [volumeFinalizer],
        deletionTimestamp: '2026-01-01T00:00:00Z',
        annotations: { 'pv.kubernetes.io/provisioned-by': 'local.stowage.dev' },
      },
      spec: {
        persistentVolumeReclaimPolicy: 'Retain',
        nodeAffinity: { required: { nodeSelectorTerms: [term] } },
        csi: { driver: 'local.stowage.dev', volumeHandle: id, volumeAttributes: { store: 'disks' } },
        claimRef: { namespace: 'shop', name: 'kept', uid: 'uid-of-kept' },
      },
      status: { phase: 'Released' },
    });
  }

  function startAll(): void {
    fixture.start(() => fixture.parts.nodeStores);
    const local = createNodeProvisioner({ ...fixture.parts, stores: fixture.parts.nodeStores, volumes: start() });
    fixture.start(createDeleting, { provisioners: new Map([[local.driver, local]]) });
  }

  test('keeps its PersistentVolume until the agent has labelled it, and stays', async () => {
    await createDeletedVolume();
    fixture.agents.disconnect('node-1');
    startAll();
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain("node 'node-1'");
    expect(await finalizers()).toEqual([volumeFinalizer]);
    node.connect();
    await eventually(async () => (await fixture.list(persistentVolumes)).length).toBe(0);
    expect(await node.volumes()).toMatchObject([{ name: 'kept', labels: { 'stowage.dev/retained': 'true' } }]);
  });

  test('does not keep its PersistentVolume when its node is gone for good', async () => {
    await createDeletedVolume();
    fixture.agents.disconnect('node-1');
    fixture.api.remove(paths.nodes, 'node-1');
    startAll();
    await eventually(async () => (await fixture.list(persistentVolumes)).length).toBe(0);
  });
});
