import { isDeepStrictEqual } from 'node:util';
import type { Scope } from '#base/log.ts';
import { driverFor } from '#core/csi-drivers.ts';
import { type Placement, placementOf } from '#core/placement.ts';
import type { StoreKind } from '#core/ports.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { storageClasses } from '#wire/kube/resources.ts';
import type { StorageClass } from '#wire/kube/types.ts';
import type { Caches } from './caches.ts';
import { ignoreNotFound } from './controller-context.ts';
import { storeLabel } from './names.ts';
import type { StoreObject } from './store-object.ts';

const defaultClassAnnotation = 'storageclass.kubernetes.io/is-default-class';
const managedByLabel = 'app.kubernetes.io/managed-by';
/** The name with which a class was created. It detects copies, which have the same labels and owner, but another name. */
const createdNameAnnotation = 'stowage.dev/made-as';

/** The StorageClass that a Store object requests. Undefined if it requests none. */
function classFor({ metadata, spec }: StoreObject, placement: Placement | undefined): StorageClass | undefined {
  const classSpec = spec.storageClass;
  if (classSpec === undefined) return undefined;
  const { name = '', uid = '' } = metadata;
  const driver = driverFor(placement);
  const { nameTemplate, enforce = false } = classSpec;
  const className = classSpec.name ?? name;
  return {
    metadata: {
      name: className,
      labels: { [storeLabel]: name, [managedByLabel]: 'stowage' },
      annotations: {
        [createdNameAnnotation]: className,
        ...(classSpec.default === true ? { [defaultClassAnnotation]: 'true' } : {}),
      },
      // Kubernetes deletes the class with its store.
      ownerReferences: [{ apiVersion: 'stowage.dev/v1', kind: 'Store', name, uid }],
    },
    provisioner: driver.name,
    parameters: {
      store: name,
      ...(nameTemplate === undefined ? {} : { nameTemplate }),
      ...(enforce ? { enforce: 'true' } : {}),
    },
    reclaimPolicy: classSpec.reclaimPolicy ?? 'Delete',
    volumeBindingMode: classSpec.volumeBindingMode ?? driver.volumeBindingMode,
    allowVolumeExpansion: classSpec.allowVolumeExpansion ?? true,
  };
}

/** Whether the store has its class, or a class that Stowage did not create has the name. Undefined: the store requests no class. */
export type ClassState = { readonly ready: true } | { readonly ready: false; readonly takenName: string } | undefined;

interface ClassOptions {
  readonly client: KubeClient;
  readonly caches: Pick<Caches, 'classes'>;
  readonly kinds: ReadonlyMap<string, StoreKind>;
}

/** Most fields of a class are immutable, so a changed class is recreated. Bound claims are not affected. */
export async function reconcileClass(
  { client, caches, kinds }: ClassOptions,
  store: StoreObject,
  { signal }: Scope,
): Promise<ClassState> {
  const wanted = classFor(store, placementOf(kinds, store.spec.uri));
  const owned = caches.classes
    .byIndex('store', store.metadata.name ?? '')
    .filter(({ metadata }) => metadata.annotations?.[createdNameAnnotation] === metadata.name);
  const current = owned.find((one) => wanted !== undefined && hasSameSpec(one, wanted));
  for (const { metadata } of owned.filter((one) => one !== current)) {
    const { name = '', uid } = metadata;
    await ignoreNotFound(client.delete(storageClasses, { name }, { uid }, signal));
  }
  if (wanted === undefined) return undefined;
  const { name = '' } = wanted.metadata;
  const other = caches.classes.get(name);
  if (other !== undefined && !owned.includes(other)) return { ready: false, takenName: name };
  if (current === undefined) await client.create(storageClasses, wanted, signal);
  return { ready: true };
}

/** Compares only the fields that the controller sets: others may add labels and annotations. */
function hasSameSpec(one: StorageClass, wanted: StorageClass): boolean {
  const comparedFields = ({ metadata, ...rest }: StorageClass): unknown => [
    metadata.name,
    metadata.annotations?.[defaultClassAnnotation] === 'true',
    metadata.ownerReferences?.map(({ uid }) => uid),
    rest.provisioner,
    rest.parameters ?? {},
    rest.reclaimPolicy,
    rest.volumeBindingMode,
    rest.allowVolumeExpansion ?? false,
  ];
  return isDeepStrictEqual(comparedFields(one), comparedFields(wanted));
}
