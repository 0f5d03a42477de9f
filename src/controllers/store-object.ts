import { StowageError, stowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import type { StoreKind } from '#core/ports.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import type { Resource } from '#wire/kube/resources.ts';
import type { Condition, KubeObject, ObjectReference } from '#wire/kube/types.ts';
import type { UnhealthyNodes } from './unhealthy-nodes.ts';

/** The custom resource by which an administrator declares a store, with the same words as stowage.yaml. */
export interface StoreObject extends KubeObject {
  readonly spec: {
    /** Scheme and location, without options. */
    readonly uri: string;
    readonly options?: Readonly<Record<string, string>>;
    /** The controller maintains a StorageClass with these fields. */
    readonly storageClass?: StorageClassSpec;
  };
  readonly status?: StoreStatus;
}

export interface StorageClassSpec {
  /** Default: the name of the store. */
  readonly name?: string;
  readonly default?: boolean;
  readonly reclaimPolicy?: 'Delete' | 'Retain';
  readonly volumeBindingMode?: 'Immediate' | 'WaitForFirstConsumer';
  readonly allowVolumeExpansion?: boolean;
  readonly nameTemplate?: string;
  readonly enforce?: boolean;
}

export interface StoreStatus {
  readonly observedGeneration?: number;
  readonly kind?: string;
  readonly conditions?: readonly Condition[];
  readonly capacity?: { readonly total: string; readonly free: string } | null;
  readonly volumes?: number | null;
  /** The nodes with a problem in the condition MountsHealthy, whose message names only some of them. */
  readonly unhealthyNodes?: UnhealthyNodes | null;
}

export const storeObjects: Resource<StoreObject> = {
  group: 'stowage.dev',
  version: 'v1',
  plural: 'stores',
  kind: 'Store',
  namespaced: false,
};

export const storeReference = ({ metadata: { name = '', uid = '' } }: StoreObject): ObjectReference => ({
  apiVersion: 'stowage.dev/v1',
  kind: 'Store',
  name,
  uid,
});

/** The configuration of a core from all Store objects. */
export interface StoreConfigs {
  readonly configs: readonly StoreConfig[];
  /** Why the other objects are invalid. They do not affect the valid ones. */
  readonly invalid: ReadonlyMap<string, StowageError>;
}

/** Used by the controller and on every node. Ignores objects that are being deleted. */
export function configsOf(objects: Iterable<StoreObject>, kinds: ReadonlyMap<string, StoreKind>): StoreConfigs {
  const [configs, invalid] = [[] as StoreConfig[], new Map<string, StowageError>()];
  for (const object of objects) {
    const { name = '', deletionTimestamp } = object.metadata;
    if (deletionTimestamp !== undefined) continue;
    try {
      configs.push(configOf(object, kinds));
    } catch (thrown) {
      invalid.set(name, stowageError(thrown));
    }
  }
  return { configs, invalid };
}

/** Why a claim cannot use the store of an invalid object. Undefined: the object is valid. */
export function refusalOf(object: StoreObject, kinds: ReadonlyMap<string, StoreKind>): StowageError | undefined {
  const { name = '' } = object.metadata;
  const cause = configsOf([object], kinds).invalid.get(name);
  if (cause === undefined) return undefined;
  return new StowageError(`store '${name}' cannot be used: its Store object is invalid`, {
    code: 'unavailable',
    reason: 'store-object-invalid',
    action: `Ask the administrator to correct the object. Its status says what is wrong: kubectl describe store ${name}`,
    cause,
  });
}

function configOf({ metadata, spec }: StoreObject, kinds: ReadonlyMap<string, StoreKind>): StoreConfig {
  const query = new URLSearchParams(spec.options);
  const uri = query.size === 0 ? spec.uri : `${spec.uri}?${query}`;
  const config = parseStoreConfig(metadata.name ?? '', uri, 'cluster', kinds);
  for (const [option, { why, action }] of Object.entries(unsupportedOptions))
    if (config.options[option] !== undefined) throw unsupportedOption(option, why, action);
  return config;
}

/** With these options volumes could be created, but pods could not mount them. */
const unsupportedOptions = {
  network: {
    why: "the pods that mount its volumes have the node's network",
    action: 'Leave out spec.options.network, and give the nodes a route to the server.',
  },
  sourceport: {
    why: 'the pods that mount its volumes have no right to choose their ports',
    action:
      "Leave out spec.options.sourceport, and have the server's administrator export it with the option insecure.",
  },
} as const;

const unsupportedOption = (option: string, why: string, action: string): StowageError =>
  new StowageError(`a store with the option ${option} cannot be used in Kubernetes: ${why}`, {
    code: 'unsupported',
    reason: 'store-option-in-cluster',
    action,
  });
