import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { type AgentNode, anAgentNode } from '#testing/agent-nodes.ts';
import { aClaim, aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aLocalClaim, aLocalClass, localClaims, volumeCounts } from '#testing/local-claims.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import { selectedNodeAnnotation } from './names.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeVolumes } from './node-volumes.ts';
import { createProvisioning } from './provisioning.ts';

const fixture = controllerFixture();
const { twoNodes, startLeader, claimsWithVolumes } = localClaims(fixture);

async function putClaim(accessModes: readonly string[], volumeMode = 'Filesystem'): Promise<AgentNode> {
  fixture.api.put(paths.stores, { metadata: { name: 'disks', uid: 'uid-of-disks' }, spec: { uri: 'local:///disks' } });
  const node = await anAgentNode(fixture, 'node-1');
  const kind = { provisioner: 'local.stowage.dev', parameters: { store: 'disks' } };
  fixture.api.put(paths.classes, aClass('fast', { ...kind, volumeBindingMode: 'WaitForFirstConsumer' }));
  const metadata = { annotations: { [selectedNodeAnnotation]: 'node-1' } };
  fixture.api.put(paths.claims, aClaim('data', { accessModes, volumeMode }, metadata));
  fixture.start(() => fixture.parts.nodeStores);
  const volumes = fixture.start(createNodeVolumes);
  const local = createNodeProvisioner({ ...fixture.parts, stores: fixture.parts.nodeStores, volumes });
  fixture.start(createProvisioning, { provisioners: new Map([[local.driver, local]]) });
  return node;
}

test.each<[string, readonly string[], string]>([
  ['ReadWriteMany', ['ReadWriteMany'], 'Filesystem'],
  ['ReadOnlyMany', ['ReadOnlyMany'], 'Filesystem'],
  ['ReadWriteMany', ['ReadWriteOnce', 'ReadWriteMany'], 'Filesystem'],
  ['ReadWriteMany', ['ReadWriteMany'], 'Block'],
])(
  'a claim of a local store for %s (%o, %s) gets an Event, waits, and leaves no volume behind',
  async (mode, accessModes, volumeMode) => {
    const node = await putClaim(accessModes, volumeMode);
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toContain(
      `the claim requests ${mode}, but volumes of its class can be used on one node only. Use ReadWriteOnce or ReadWriteOncePod; or a class of file.stowage.dev`,
    );
    expect([await fixture.list(persistentVolumes), await node.volumes()]).toEqual([[], []]);
  },
);

test.each(['ReadWriteOnce', 'ReadWriteOncePod'])('a claim of a local store gets the access mode %s', async (mode) => {
  await putClaim([mode]);
  await eventually(() => fixture.list(persistentVolumes)).toMatchObject([{ spec: { accessModes: [mode] } }]);
});

test('a recreated claim does not wait for the node of the deleted claim, and gets no Events about it', async () => {
  const [one, two] = await twoNodes();
  fixture.api.put(paths.classes, aLocalClass());
  fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
  one.intercept = async (request) => {
    const { intercept } = one;
    const isCreateRequest = request.method === 'POST' && request.path === '/v1/volumes';
    if (isCreateRequest && (await one.volumes()).length === 0) {
      one.intercept = undefined;
      await one.answer(request);
      one.intercept = intercept;
    }
    const details = { code: 'deadline', reason: 'agent-no-answer', action: '' } as const;
    throw new StowageError('the agent of node node-1 gave no answer within 30 s', details);
  };
  startLeader();
  await eventually(() => fixture.notes('ProvisioningFailed')).toHaveLength(1);
  fixture.api.remove(paths.claims, 'data');
  const { length } = fixture.agents.requests.filter((asked) => asked.startsWith('node-1'));
  await eventually(() => fixture.agents.requests.filter((asked) => asked.startsWith('node-1')).length).toBeGreaterThan(
    length,
  );
  const recreated = aLocalClaim('data', 'node-2');
  fixture.api.put(paths.claims, { ...recreated, metadata: { ...recreated.metadata, uid: 'uid-of-second' } });
  await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-second']);
  await eventually(() => fixture.notes('ProvisioningSucceeded')).toHaveLength(1);
  // The recreated claim gets no Event about the deleted claim.
  expect(await fixture.notes('ProvisioningFailed')).toHaveLength(1);
  expect(await volumeCounts(one, two)).toEqual([1, 1]);
  one.intercept = undefined;
  await eventually(() => volumeCounts(one, two)).toEqual([0, 1]);
});
