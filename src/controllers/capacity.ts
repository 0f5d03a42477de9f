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
import { type ControllerParts, ignoreNotFound } from './controller-parts.ts';
import { type Cache, createCache, identityOf } from './machinery/cache.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { type Again, again, type Done, done } from './machinery/outcome.ts';
import type { NodeStores } from './node-stores.ts';
import type { StoreObject } from './store-object.ts';

export interface CapacityOptions extends Omit<ControllerParts, 'provisioners' | 'events'> {
  readonly stores: NodeStores;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  /** Where the objects are: Stowage's own. */
  readonly namespace: string;
}

export interface CapacityController extends Controller {
  /** To be fed as the others. */
  readonly cache: Cache<CsiStorageCapacity>;
}

/** What is left for a class on a node; with no node, on whatever the class reaches. */
interface Room {
  readonly node: string | undefined;
  readonly freeBytes: bigint;
}

/** Whom new objects belong to. Undefined: nobody. */
type Owner = () => Promise<OwnerReference | undefined>;

/** What changes all the time is written when it matters, or when it has been wrong for long. */
const maxStaleMs = 300_000;
const intervalMs = 60_000;
/** For the watch to tell of what was written. */
const watchLagMs = 10_000;
/** For agents to connect again. Without its object a node gets no pods that want a volume. */
const agentGraceMs = 120_000;
const capacityLabels = { 'app.kubernetes.io/managed-by': 'stowage' } as const;
const classLabel = 'stowage.dev/storage-class';

/**
 * Says for each class of ours how much a new volume may have, and where: the scheduler sends a pod whose claim has no volume yet only to a
 * node that has room for it. The objects belong to the CSIDriver: they go when that does.
 */
export function createCapacity(options: CapacityOptions): CapacityController {
  const { client, clock, caches, stores, kinds, namespace } = options;
  const cache = createCapacityCache(client, clock, namespace);
  const startedAt = clock.elapsed();
  const written = new Map<string, { readonly capacity: string; readonly at: number }>();
  const lastWantedAt = new Map<string, number>();

  const driverOf = ({ uri }: StoreObject['spec']): CsiDriver => driverFor(placementOf(kinds, uri));

  function storeOf({ parameters = {}, provisioner }: StorageClass): string | undefined {
    const all = [...caches.stores.all()].filter(({ spec }) => driverOf(spec).name === provisioner);
    const wanted = parameters['store'] ?? (all.length === 1 ? all[0]?.metadata.name : undefined);
    return all.some(({ metadata }) => metadata.name === wanted) ? wanted : undefined;
  }

  function roomFor(kind: StorageClass): readonly Room[] {
    const store = storeOf(kind);
    if (store === undefined) return [];
    if (driverNamed(kind.provisioner)?.topology === 'node')
      return [...stores.all()].flatMap(({ node, stores: those }) => {
        const topology = caches.nodes.get(node)?.metadata.labels?.[nodeTopologyKey];
        const seen = those.get(store);
        if (topology === undefined || seen === undefined) return [];
        return { node: topology, freeBytes: seen.isOpen ? seen.freeBytes : 0n };
      });
    const freeBytes = bytesOf(caches.stores.get(store)?.status?.capacity?.free);
    return freeBytes === undefined ? [] : [{ node: undefined, freeBytes }];
  }

  async function reconcile(name: string, scope: Scope): Promise<Done | Again> {
    const kind = caches.classes.get(name);
    const isOurs = kind !== undefined && driverNamed(kind.provisioner) !== undefined;
    const rooms = isOurs ? roomFor(kind) : [];
    const wanted = new Set(rooms.map(({ node }) => objectName(name, node)));
    for (const own of wanted) lastWantedAt.set(own, clock.elapsed());
    const isKept = (own: string): boolean =>
      wanted.has(own) || (isOurs && clock.elapsed() - (lastWantedAt.get(own) ?? startedAt) < agentGraceMs);
    for (const { metadata } of cache.by('class', name))
      if (!isKept(metadata.name ?? '')) await remove(metadata.name ?? '', scope);
    if (!isOurs) return done;
    const owner = once(() => ownerOf(kind.provisioner, scope));
    for (const room of rooms) await writeCapacity(name, room, owner, scope);
    return again(intervalMs);
  }

  async function writeCapacity(name: string, room: Room, ownerNow: Owner, { signal }: Scope): Promise<void> {
    const own = objectName(name, room.node);
    const known = cache.get(`${namespace}/${own}`);
    const capacity = quantityOf(room.freeBytes);
    const last = written.get(own);
    const sinceMs = clock.elapsed() - (last?.at ?? Number.NEGATIVE_INFINITY);
    // What was written a moment ago may not have been told yet.
    const untold = sinceMs < watchLagMs ? last : undefined;
    const before = untold === undefined ? known?.capacity : untold.capacity;
    if (before !== undefined && (before === capacity || !isSignificant(room.freeBytes, before, sinceMs))) return;
    if (known === undefined && untold === undefined) {
      const owner = await ownerNow();
      // None: not installed as usual, or being taken away.
      if (owner === undefined) return;
      const labels = room.node === undefined ? {} : { [nodeTopologyKey]: room.node };
      await client.create(
        csiStorageCapacities,
        {
          metadata: {
            name: own,
            namespace,
            ownerReferences: [owner],
            labels: { ...capacityLabels, [classLabel]: labelFor(name) },
          },
          // One with no labels fits every node; none at all would fit none.
          storageClassName: name,
          nodeTopology: { matchLabels: labels },
          capacity,
        },
        signal,
      );
    } else {
      const body = { capacity };
      await client.patch(csiStorageCapacities, { namespace, name: own }, { kind: 'merge', body }, signal);
    }
    written.set(own, { capacity, at: clock.elapsed() });
  }

  async function remove(name: string, { signal }: Scope): Promise<void> {
    await ignoreNotFound(client.delete(csiStorageCapacities, { namespace, name }, {}, signal));
    written.delete(name);
    lastWantedAt.delete(name);
  }

  /** As it is now: one that was deleted and made anew is another, and what belongs to the one before is taken away at once. */
  async function ownerOf(name: string, { signal }: Scope): Promise<OwnerReference | undefined> {
    const driver = await ignoreNotFound(client.get(csiDrivers, { name }, signal));
    if (driver === undefined) return undefined;
    const { uid = '' } = driver.metadata;
    return { apiVersion: 'storage.k8s.io/v1', kind: 'CSIDriver', name, uid };
  }

  const controller = createController({ name: 'capacity', clock, reconcile, workers: 4, groupOf: (key) => key });
  const ofDriver = (driver: string): string[] =>
    [...caches.classes.all()].flatMap(({ metadata, provisioner }) =>
      provisioner === driver ? (metadata.name ?? []) : [],
    );
  controller.follow(caches.classes);
  controller.follow(caches.stores, ({ spec }) => ofDriver(driverOf(spec).name));
  controller.follow(caches.nodes, () => []);
  const addLocalClasses = (): void => {
    for (const name of ofDriver(localDriver.name)) controller.add(name);
  };
  const topologyOf = ({ metadata }: Node): string | undefined => metadata.labels?.[nodeTopologyKey];
  caches.nodes.on({
    added: addLocalClasses,
    changed: (node, before) => {
      // Kubelets put it there when they know the driver; nodes say that they live all the time.
      if (topologyOf(node) !== topologyOf(before)) addLocalClasses();
    },
  });
  // Somebody took it away: what was written is not so any more.
  cache.on({ deleted: ({ metadata: { name = '' } }) => void written.delete(name) });
  // What was left by another controller for a class that is gone.
  controller.follow(cache, ({ storageClassName }) => [storageClassName]);
  stores.onChange(addLocalClasses);
  return { ...controller, cache };
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

/** Asked when it is needed, and no more than once. */
function once<T>(ask: () => Promise<T>): () => Promise<T> {
  let asked: Promise<T> | undefined;
  return () => {
    asked ??= ask();
    return asked;
  };
}

/** More than a hundredth of what is free, or from something to nothing, or back; anything else after a while. */
function isSignificant(free: bigint, known: string, sinceMs: number): boolean {
  const before = bytesOf(known) ?? 0n;
  if (sinceMs >= maxStaleMs || (before === 0n) !== (free === 0n)) return true;
  const difference = before > free ? before - free : free - before;
  return difference * 100n >= before;
}

/** The same for the same class and node, so that it cannot be there twice. */
const objectName = (name: string, node: string | undefined): string =>
  `stowage-${createHash('sha256')
    .update(JSON.stringify([name, node ?? null]))
    .digest('hex')
    .slice(0, 32)}`;

/** For who looks for them; names of classes may be longer than values of labels. */
const labelFor = (name: string): string => name.slice(0, 63).replace(/[^A-Za-z0-9]+$/, '');
