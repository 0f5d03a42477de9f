import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { createDeleting } from '#controllers/deleting.ts';
import type { Controller } from '#controllers/machinery/controller.ts';
import { selectedNodeAnnotation } from '#controllers/names.ts';
import { createNodeProvisioner } from '#controllers/node-provisioner.ts';
import { createNodeVolumes } from '#controllers/node-volumes.ts';
import type { Provisioner } from '#controllers/provisioner.ts';
import { createProvisioning } from '#controllers/provisioning.ts';
import { createResizing } from '#controllers/resizing.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import { type AgentNode, anAgentNode } from './agent-nodes.ts';
import { aClaim, aClass, type ControllerFixture, paths } from './controller-fixture.ts';
import { aCall } from './core-calls.ts';
import type { AnyObject } from './fakes/kube-objects.ts';

/** Claims of the store `disks`, which exists on two nodes. */
export interface LocalClaims {
  /** The nodes `node-1` and `node-2`. Each argument has the options of one node's store. */
  twoNodes(...options: readonly string[]): Promise<readonly [AgentNode, AgentNode]>;
  /** Starts a controller that has just become the leader, without any state of an earlier one. */
  startLeader(): { readonly local: Provisioner; readonly provisioning: Controller };
  volumes(): Promise<readonly PersistentVolume[]>;
  /** The names of claims that have a complete volume. */
  claimsWithVolumes(): Promise<readonly string[]>;
  /** Creates the volume for the claim of that name on the node. */
  provision(name: string, node: AgentNode): Promise<void>;
}

export function localClaims(it: ControllerFixture): LocalClaims {
  const volumes = () => it.list(persistentVolumes);
  return {
    volumes,
    claimsWithVolumes: async () => (await volumes()).map(({ metadata }) => metadata.name ?? '').toSorted(),
    twoNodes: async (...options) => {
      it.api.put(paths.stores, { metadata: { name: 'disks', uid: 'uid-of-disks' }, spec: { uri: 'local:///disks' } });
      return [await anAgentNode(it, 'node-1', options[0]), await anAgentNode(it, 'node-2', options[1])];
    },
    startLeader: () => {
      it.start(() => it.parts.nodeStores);
      const found = it.start(createNodeVolumes);
      const local = createNodeProvisioner({ ...it.parts, stores: it.parts.nodeStores, volumes: found });
      const provisioners = new Map([[local.driver, local]]);
      const provisioning = it.start(createProvisioning, { provisioners });
      it.start(createDeleting, { provisioners });
      it.start(createResizing, { provisioners });
      return { local, provisioning };
    },
    provision: async (name, node) => {
      const ownLabels = {
        'stowage.dev/claim-uid': `uid-of-${name}`,
        'stowage.dev/cluster': it.parts.cluster,
        'stowage.dev/claim-namespace': 'shop',
        'stowage.dev/claim-name': name,
      };
      await node.answer({ method: 'POST', path: '/v1/volumes', body: { store: 'disks', name, ownLabels } });
    },
  };
}

/** A class with WaitForFirstConsumer, unless the options replace that. */
export const aLocalClass = (more: object = { volumeBindingMode: 'WaitForFirstConsumer' }): AnyObject =>
  aClass('fast', { provisioner: 'local.stowage.dev', parameters: { store: 'disks' }, ...more });

/** A claim, with the node that the scheduler has chosen, if any. */
export const aLocalClaim = (name: string, node?: string): AnyObject =>
  aClaim(name, {}, node === undefined ? {} : { annotations: { [selectedNodeAnnotation]: node } });

/** Moves the store `disks` of that node to another folder. */
export async function moveStore({ server }: AgentNode, folder: string): Promise<void> {
  const place = join(server.folder, folder);
  mkdirSync(place, { recursive: true });
  await server.core.stores.remove('disks', aCall());
  await server.core.stores.add('disks', `local://${place}`, aCall());
}

/** The number of volumes of each node. */
export const volumeCounts = async (...nodes: readonly AgentNode[]): Promise<readonly number[]> =>
  await Promise.all(nodes.map(async (node) => (await node.volumes()).length));
