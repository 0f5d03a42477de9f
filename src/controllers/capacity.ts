import { createHash } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { bytesOf, quantityOf } from '#base/quantity.ts';
import { type CsiDriver, driverFor, driverNamed, localDriver } from '#core/csi-drivers.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { placementOf } from '#core/placement.ts';
import type { StoreKind } from '#core/ports.ts';
import { csiDrivers, csiStorageCapacities } from '#wire/kube/resources.ts';
import type { CsiStorageCapacity, Node, OwnerReference, StorageClass } from '#wire/kube/types.ts';
import { type ControllerContext, ignoreNotFound } from './controller-context.ts';
import { type Cache, createCache, identityOf } from './machinery/cache.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import type { NodeStores } from './node-stores.ts';
import type { StoreObject } from './store-object.ts';

export interface CapacityOptions extends Omit<ControllerContext, 'provisioners' | 'events'> {
  readonly stores: NodeStores;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  /** The namespace of the objects: Stowage's own. */
  readonly namespace: string;
}

export interface CapacityController extends Controller {
  /** The caller has to run it, like the other caches. */
  readonly cache: Cache<CsiStorageCapacity>;
}

/** The free space for a class on a node. Without a node: on every node that the class allows. */
interface FreeSpace {
  readonly node: string | undefined;
  readonly freeBytes: bigint;
}

/** Returns the owner of new objects, or undefined if there is none. */
type ReadOwner = () => Promise<OwnerReference | undefined>;

/** Free space changes all the time. A small change is written only after this time. */
const maxStaleMs = 300_000;
const resyncMs = 60_000;
/** How long the watch may take to deliver our own write. */
const watchLagMs = 10_000;
/** How long an agent may take to reconnect. Without a CSIStorageCapacity, the scheduler sends the node no pods that need a volume. */
const agentGraceMs = 120_000;
const capacityLabels = { 'app.kubernetes.io/managed-by': 'stowage' } as const;
const classLabel = 'stowage.dev/storage-class';

/**
 * Writes a CSIStorageCapacity for each of our classes and each node: the scheduler sends a pod whose claim has no volume yet only to a node
 * with enough space. The CSIDriver owns the objects, so that they are deleted with it.
 */
export function createCapacity(options: CapacityOptions): CapacityController {
  const { client, clock, caches, stores, kinds, namespace } = options;
  const cache = createCapacityCache(client, clock, namespace);
  const startedAt = clock.elapsed();
  const lastWrites = new Map<string, { readonly capacity: string; readonly writtenAt: number }>();
  const lastWantedAt = new Map<string, number>();

  async function reconcile(name: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    const storageClass = caches.classes.get(name);
    const isOurs = storageClass !== undefined && driverNamed(storageClass.provisioner) !== undefined;
    const spaces = isOurs ? freeSpaceFor(storageClass, options) : [];
    const wanted = new Set(spaces.map(({ node }) => capacityNameOf(name, node)));
    for (const objectName of wanted) lastWantedAt.set(objectName, clock.elapsed());
    const isKept = (objectName: string): boolean =>
      wanted.has(objectName) ||
      (isOurs && clock.elapsed() - (lastWantedAt.get(objectName) ?? startedAt) < agentGraceMs);
    for (const { metadata } of cache.byIndex('class', name))
      if (!isKept(metadata.name ?? '')) await remove(metadata.name ?? '', scope);
    if (!isOurs) return done;
    const owner = once(() => ownerOf(client, storageClass.provisioner, scope));
    for (const space of spaces) await writeCapacity(name, space, owner, scope);
    return requeueAfter(resyncMs);
  }

  async function writeCapacity(name: string, space: FreeSpace, getOwner: ReadOwner, { signal }: Scope): Promise<void> {
    const objectName = capacityNameOf(name, space.node);
    const cached = cache.get(`${namespace}/${objectName}`);
    const capacity = quantityOf(space.freeBytes);
    const last = lastWrites.get(objectName);
    const sinceMs = clock.elapsed() - (last?.writtenAt ?? Number.NEGATIVE_INFINITY);
    // The cache may not have the last write yet.
    const unseenWrite = sinceMs < watchLagMs ? last : undefined;
    const before = unseenWrite === undefined ? cached?.capacity : unseenWrite.capacity;
    if (before !== undefined && (before === capacity || !isSignificant(space.freeBytes, before, sinceMs))) return;
    if (cached === undefined && unseenWrite === undefined) {
      const owner = await getOwner();
      // No CSIDriver: not installed by the chart, or being uninstalled.
      if (owner === undefined) return;
      const labels = space.node === undefined ? {} : { [nodeTopologyKey]: space.node };
      await client.create(
        csiStorageCapacities,
        {
          metadata: {
            name: objectName,
            namespace,
            ownerReferences: [owner],
            labels: { ...capacityLabels, [classLabel]: labelFor(name) },
          },
          // An empty selector matches every node; without nodeTopology it would match none.
          storageClassName: name,
          nodeTopology: { matchLabels: labels },
          capacity,
        },
        signal,
      );
    } else {
      const body = { capacity };
      await client.patch(csiStorageCapacities, { namespace, name: objectName }, { kind: 'merge', body }, signal);
    }
    lastWrites.set(objectName, { capacity, writtenAt: clock.elapsed() });
  }

  async function remove(name: string, { signal }: Scope): Promise<void> {
    await ignoreNotFound(client.delete(csiStorageCapacities, { namespace, name }, {}, signal));
    lastWrites.delete(name);
    lastWantedAt.delete(name);
  }

  const controller = createController({ name: 'capacity', clock, reconcile, workers: 4, groupOf: (key) => key });
  const classesOfDriver = (driver: string): string[] =>
    [...caches.classes.all()].flatMap(({ metadata, provisioner }) =>
      provisioner === driver ? (metadata.name ?? []) : [],
    );
  controller.follow(caches.classes);
  controller.follow(caches.stores, ({ spec }) => classesOfDriver(driverOf(spec, kinds).name));
  controller.follow(caches.nodes, () => []);
  const addLocalClasses = (): void => {
    for (const name of classesOfDriver(localDriver.name)) controller.add(name);
  };
  const topologyOf = ({ metadata }: Node): string | undefined => metadata.labels?.[nodeTopologyKey];
  caches.nodes.on({
    added: addLocalClasses,
    changed: (node, before) => {
      // A kubelet sets the label when the driver registers. Most other changes are heartbeats.
      if (topologyOf(node) !== topologyOf(before)) addLocalClasses();
    },
  });
  // Another client deleted the object, so forget what was written.
  cache.on({ deleted: ({ metadata: { name = '' } }) => void lastWrites.delete(name) });
  // Finds objects that another leader left for a deleted class.
  controller.follow(cache, ({ storageClassName }) => [storageClassName]);
  stores.onChange(addLocalClasses);
  return { ...controller, cache };
}

type StoreSources = Pick<CapacityOptions, 'caches' | 'stores' | 'kinds'>;

const driverOf = ({ uri }: StoreObject['spec'], kinds: CapacityOptions['kinds']): CsiDriver =>
  driverFor(placementOf(kinds, uri));

/** The store of a class: the one that it names, otherwise the only store of its driver. */
function storeOf({ parameters = {}, provisioner }: StorageClass, { caches, kinds }: StoreSources): string | undefined {
  const all = [...caches.stores.all()].filter(({ spec }) => driverOf(spec, kinds).name === provisioner);
  const storeName = parameters['store'] ?? (all.length === 1 ? all[0]?.metadata.name : undefined);
  return all.some(({ metadata }) => metadata.name === storeName) ? storeName : undefined;
}

function freeSpaceFor(storageClass: StorageClass, sources: StoreSources): readonly FreeSpace[] {
  const { caches, stores } = sources;
  const store = storeOf(storageClass, sources);
  if (store === undefined) return [];
  if (driverNamed(storageClass.provisioner)?.topology === 'node')
    return [...stores.all()].flatMap(({ node, stores: nodeStores }) => {
      const topology = caches.nodes.get(node)?.metadata.labels?.[nodeTopologyKey];
      const nodeStore = nodeStores.get(store);
      if (topology === undefined || nodeStore === undefined) return [];
      return { node: topology, freeBytes: nodeStore.isOpen ? nodeStore.freeBytes : 0n };
    });
  const freeBytes = bytesOf(caches.stores.get(store)?.status?.capacity?.free);
  return freeBytes === undefined ? [] : [{ node: undefined, freeBytes }];
}

/** Reads the current CSIDriver: after it was recreated, objects owned by the old one would be garbage-collected at once. */
async function ownerOf(
  client: CapacityOptions['client'],
  name: string,
  { signal }: Scope,
): Promise<OwnerReference | undefined> {
  const driver = await ignoreNotFound(client.get(csiDrivers, { name }, signal));
  if (driver === undefined) return undefined;
  const { uid = '' } = driver.metadata;
  return { apiVersion: 'storage.k8s.io/v1', kind: 'CSIDriver', name, uid };
}

const createCapacityCache = (client: CapacityOptions['client'], clock: Clock, namespace: string) =>
  createCache<CsiStorageCapacity, CsiStorageCapacity>({
    client,
    clock,
    resource: csiStorageCapacities,
    select: {
      namespace,
      labelSelector: Object.entries(capacityLabels)
        .map(([key, value]) => `${key}=${value}`)
        .join(','),
    },
    trim: ({ metadata, storageClassName, capacity }) => ({
      metadata: identityOf({ metadata }),
      storageClassName,
      ...(capacity === undefined ? {} : { capacity }),
    }),
    indexes: { class: ({ storageClassName }) => [storageClassName] },
  });

/** Calls `ask` lazily and at most once. */
function once<T>(ask: () => Promise<T>): () => Promise<T> {
  let result: Promise<T> | undefined;
  return () => {
    result ??= ask();
    return result;
  };
}

/** A change of at least 1 % of the free space, or between zero and non-zero; any change after `maxStaleMs`. */
function isSignificant(free: bigint, known: string, sinceMs: number): boolean {
  const before = bytesOf(known) ?? 0n;
  if (sinceMs >= maxStaleMs || (before === 0n) !== (free === 0n)) return true;
  const difference = before > free ? before - free : free - before;
  return difference * 100n >= before;
}

/** Derived from class and node, so that there cannot be two objects for them. */
const capacityNameOf = (name: string, node: string | undefined): string =>
  `stowage-${createHash('sha256')
    .update(JSON.stringify([name, node ?? null]))
    .digest('hex')
    .slice(0, 32)}`;

/** The label is only for users. Names of classes can be longer than label values. */
const labelFor = (name: string): string => name.slice(0, 63).replace(/[^A-Za-z0-9]+$/, '');
