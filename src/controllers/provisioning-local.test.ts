import { expect, test } from 'vitest';
import { type AgentNode, anAgentNode } from '#testing/agent-nodes.ts';
import { aClaim, aClass, controlled, eventually, paths } from '#testing/controlled.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import { selectedNode } from './names.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeVolumes } from './node-volumes.ts';
import { createProvisioning } from './provisioning.ts';

const it = controlled();

async function claimed(accessModes: readonly string[], volumeMode = 'Filesystem'): Promise<AgentNode> {
  it.api.put(paths.stores, { metadata: { name: 'disks', uid: 'uid-of-disks' }, spec: { uri: 'local:///disks' } });
  const node = await anAgentNode(it, 'node-1');
  const kind = { provisioner: 'local.stowage.dev', parameters: { store: 'disks' } };
  it.api.put(paths.classes, aClass('fast', { ...kind, volumeBindingMode: 'WaitForFirstConsumer' }));
  const chosen = { annotations: { [selectedNode]: 'node-1' } };
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
  'a claim of a local store for %s (%o, %s) is told that there is none, waits, and leaves nothing',
  async (mode, all, volumeMode) => {
    const node = await claimed(all, volumeMode);
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toContain(
      `the claim asks for ${mode}, and volumes of its class can be used on one node only. Ask for ReadWriteOnce or ReadWriteOncePod; or for a class of file.stowage.dev`,
    );
    expect([await it.list(persistentVolumes), await node.volumes()]).toEqual([[], []]);
  },
);

test.each(['ReadWriteOnce', 'ReadWriteOncePod'])('a claim of a local store for %s gets it', async (mode) => {
  await claimed([mode]);
  await eventually(() => it.list(persistentVolumes)).toMatchObject([{ spec: { accessModes: [mode] } }]);
});
