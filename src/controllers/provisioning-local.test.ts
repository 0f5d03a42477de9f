import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { type AgentNode, anAgentNode } from '#testing/agent-nodes.ts';
import { aClaim, aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aLocalClaim, aLocalClass, counted, localClaims } from '#testing/local-claims.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import { selectedNodeAnnotation } from './names.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeVolumes } from './node-volumes.ts';
import { createProvisioning } from './provisioning.ts';

const it = controllerFixture();
const { twoNodes, lead, wellMade } = localClaims(it);

async function claimed(accessModes: readonly string[], volumeMode = 'Filesystem'): Promise<AgentNode> {
  it.api.put(paths.stores, { metadata: { name: 'disks', uid: 'uid-of-disks' }, spec: { uri: 'local:///disks' } });
  const node = await anAgentNode(it, 'node-1');
  const kind = { provisioner: 'local.stowage.dev', parameters: { store: 'disks' } };
  it.api.put(paths.classes, aClass('fast', { ...kind, volumeBindingMode: 'WaitForFirstConsumer' }));
  const chosen = { annotations: { [selectedNodeAnnotation]: 'node-1' } };
  it.api.put(paths.claims, aClaim('data', { accessModes, volumeMode }, chosen));
  it.start(() => it.parts.nodeStores);
  const volumes = it.start(createNodeVolumes);
  const local = createNodeProvisioner({ ...it.parts, stores: it.parts.nodeStores, volumes });
  it.start(createProvisioning, { provisioners: new Map([[local.driver, local]]) });
  return node;
}

test.each<[string, readonly string[], string]>([
  ['ReadWriteMany', ['ReadWriteMany'], 'Filesystem'],
  ['ReadOnlyMany', ['ReadOnlyMany'], 'Filesystem'],
  ['ReadWriteMany', ['ReadWriteOnce', 'ReadWriteMany'], 'Filesystem'],
  ['ReadWriteMany', ['ReadWriteMany'], 'Block'],
])(
  'a claim of a local store for %s (%o, %s) gets an Event, waits, and leaves no volume behind',
  async (mode, all, volumeMode) => {
    const node = await claimed(all, volumeMode);
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toContain(
      `the claim requests ${mode}, but volumes of its class can be used on one node only. Use ReadWriteOnce or ReadWriteOncePod; or a class of file.stowage.dev`,
    );
    expect([await it.list(persistentVolumes), await node.volumes()]).toEqual([[], []]);
  },
);

test.each(['ReadWriteOnce', 'ReadWriteOncePod'])('a claim of a local store gets the access mode %s', async (mode) => {
  await claimed([mode]);
  await eventually(() => it.list(persistentVolumes)).toMatchObject([{ spec: { accessModes: [mode] } }]);
});

test('a recreated claim does not wait for the node of the first one, and gets no Events about it', async () => {
  const [one, two] = await twoNodes();
  it.api.put(paths.classes, aLocalClass());
  it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
  one.intercept = async (request) => {
    const { intercept } = one;
    const isMaking = request.method === 'POST' && request.path === '/v1/volumes';
    if (isMaking && (await one.volumes()).length === 0) {
      one.intercept = undefined;
      await one.answer(request);
      one.intercept = intercept;
    }
    const how = { code: 'deadline', reason: 'agent-no-answer', action: '' } as const;
    throw new StowageError('the agent of node node-1 gave no answer within 30 s', how);
  };
  lead();
  await eventually(() => it.notes('ProvisioningFailed')).toHaveLength(1);
  it.api.remove(paths.claims, 'data');
  const { length } = it.agents.requests.filter((asked) => asked.startsWith('node-1'));
  await eventually(() => it.agents.requests.filter((asked) => asked.startsWith('node-1')).length).toBeGreaterThan(
    length,
  );
  const next = aLocalClaim('data', 'node-2');
  it.api.put(paths.claims, { ...next, metadata: { ...next.metadata, uid: 'uid-of-second' } });
  await eventually(wellMade).toEqual(['pvc-uid-of-second']);
  await eventually(() => it.notes('ProvisioningSucceeded')).toHaveLength(1);
  // Only the first claim gets the Event about the first claim.
  expect(await it.notes('ProvisioningFailed')).toHaveLength(1);
  expect(await counted(one, two)).toEqual([1, 1]);
  one.intercept = undefined;
  await eventually(() => counted(one, two)).toEqual([0, 1]);
});
