import type { AnyCluster, AnyObject } from './cluster.ts';
import { disksOf, ownedBy } from './decision.ts';

/** What is in a list does not say what it is. */
export const matchingName = (apiVersion: string, kind: string, { metadata }: AnyObject): AnyObject => ({
  apiVersion,
  kind,
  metadata,
});

/**
 * Takes away what a run has made: things as the API server gave them, in the order in which they were made. Each is known by its
 * uid, so that nothing is taken away that only has the same name. The programs are taken away in between: as long as there are
 * volumes and classes they are needed.
 */
export async function removeCreated(
  cluster: AnyCluster,
  made: readonly AnyObject[],
  programs: () => Promise<unknown>,
): Promise<void> {
  const of = (kind: string): readonly AnyObject[] => made.filter((thing) => thing.kind === kind);
  for (const server of of('StatefulSet')) await removeServer(cluster, server);
  for (const claim of of('PersistentVolumeClaim')) await removeClaim(cluster, claim);
  await removeStores(cluster, of('Store'));
  await programs();
  const left = of('CustomResourceDefinition').length === 0 ? [] : await cluster.list('stowage.dev/v1', 'Store');
  // With their definition they would go, too.
  const isKept = ({ kind }: AnyObject): boolean => kind === 'CustomResourceDefinition' && left.length > 0;
  const rest = made.filter((thing) => !isKept(thing)).toReversed();
  for (const thing of rest) await cluster.remove(thing);
  for (const thing of rest) await gone(cluster, thing);
  if (left.length === 0) return;
  const names = left.map(({ metadata }) => metadata.name).join(', ');
  throw new Error(`these Stores were made by others meanwhile, and are left with their definition: ${names}`);
}

async function gone(cluster: AnyCluster, thing: AnyObject): Promise<void> {
  await cluster.until(
    `the end of ${thing.kind} ${thing.metadata.name}`,
    () => cluster.find(thing),
    (seen) => seen?.metadata.uid !== thing.metadata.uid,
  );
}

async function removeServer(cluster: AnyCluster, server: AnyObject): Promise<void> {
  const { namespace } = server.metadata;
  const pods = async () => ownedBy(await cluster.list('v1', 'Pod', namespace), [server]);
  await cluster.remove(server);
  await cluster.until('the end of the NFS server', pods, (all) => all.length === 0);
}

/** With its volume, which would outlive it otherwise. */
async function removeClaim(cluster: AnyCluster, claim: AnyObject): Promise<void> {
  const disks = async () => disksOf(await cluster.list('v1', 'PersistentVolume'), claim);
  for (const { metadata } of await disks())
    await cluster.apply({
      apiVersion: 'v1',
      kind: 'PersistentVolume',
      metadata: { name: metadata.name, uid: metadata.uid },
      spec: { persistentVolumeReclaimPolicy: 'Delete' },
    });
  await cluster.remove(claim);
  await cluster.until('the end of its volume', disks, (all) => all.length === 0);
}

/** With their classes, which Kubernetes takes away. */
async function removeStores(cluster: AnyCluster, stores: readonly AnyObject[]): Promise<void> {
  for (const store of stores) await cluster.remove(store);
  const classes = async () => ownedBy(await cluster.list('storage.k8s.io/v1', 'StorageClass'), stores);
  await cluster.until('the end of the classes', classes, (all) => all.length === 0);
}
