import type { AnyCluster, AnyObject } from './cluster.ts';
import { ownedBy, volumesOfClaim } from './decision.ts';

/** The object with kind and apiVersion, which the items of a list lack. */
export const matchingName = (apiVersion: string, kind: string, { metadata }: AnyObject): AnyObject => ({
  apiVersion,
  kind,
  metadata,
});

/**
 * Removes the objects that a run has created, given in the order of their creation as the API server returned them.
 * Deletes by uid, so that other objects with these names stay. Stowage's workloads are removed after the volumes and
 * classes, which need them.
 */
export async function removeCreated(
  cluster: AnyCluster,
  createdObjects: readonly AnyObject[],
  removeWorkloads: () => Promise<unknown>,
): Promise<void> {
  const ofKind = (kind: string): readonly AnyObject[] => createdObjects.filter((thing) => thing.kind === kind);
  for (const server of ofKind('StatefulSet')) await removeServer(cluster, server);
  for (const claim of ofKind('PersistentVolumeClaim')) await removeClaim(cluster, claim);
  await removeStores(cluster, ofKind('Store'));
  await removeWorkloads();
  const remainingStores =
    ofKind('CustomResourceDefinition').length === 0 ? [] : await cluster.list('stowage.dev/v1', 'Store');
  // Deleting the CRD would delete the remaining objects, too.
  const isKept = ({ kind }: AnyObject): boolean => kind === 'CustomResourceDefinition' && remainingStores.length > 0;
  const remaining = createdObjects.filter((thing) => !isKept(thing)).toReversed();
  for (const thing of remaining) await cluster.remove(thing);
  for (const thing of remaining) await waitUntilGone(cluster, thing);
  if (remainingStores.length === 0) return;
  const names = remainingStores.map(({ metadata }) => metadata.name).join(', ');
  throw new Error(`other users created these Stores meanwhile, so the Stores and their CRD were not deleted: ${names}`);
}

async function waitUntilGone(cluster: AnyCluster, thing: AnyObject): Promise<void> {
  await cluster.waitFor(
    `the deletion of ${thing.kind} ${thing.metadata.name}`,
    () => cluster.find(thing),
    (seen) => seen?.metadata.uid !== thing.metadata.uid,
  );
}

async function removeServer(cluster: AnyCluster, server: AnyObject): Promise<void> {
  const { namespace } = server.metadata;
  const pods = async () => ownedBy(await cluster.list('v1', 'Pod', namespace), [server]);
  await cluster.remove(server);
  await cluster.waitFor('the deletion of the NFS server', pods, (all) => all.length === 0);
}

/** Also deletes the claim's volume, which would outlive the claim otherwise. */
async function removeClaim(cluster: AnyCluster, claim: AnyObject): Promise<void> {
  const disks = async () => volumesOfClaim(await cluster.list('v1', 'PersistentVolume'), claim);
  for (const { metadata } of await disks())
    await cluster.apply({
      apiVersion: 'v1',
      kind: 'PersistentVolume',
      metadata: { name: metadata.name, uid: metadata.uid },
      spec: { persistentVolumeReclaimPolicy: 'Delete' },
    });
  await cluster.remove(claim);
  await cluster.waitFor('the deletion of its volume', disks, (all) => all.length === 0);
}

/** Kubernetes deletes the classes together with their stores. */
async function removeStores(cluster: AnyCluster, stores: readonly AnyObject[]): Promise<void> {
  for (const store of stores) await cluster.remove(store);
  const classes = async () => ownedBy(await cluster.list('storage.k8s.io/v1', 'StorageClass'), stores);
  await cluster.waitFor('the deletion of the classes', classes, (all) => all.length === 0);
}
