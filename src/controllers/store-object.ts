import { StowageError, stowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import type { StoreKind } from '#core/ports.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import type { Resource } from '#wire/kube/resources.ts';
import type { Condition, KubeObject, ObjectReference } from '#wire/kube/types.ts';
import type { UnhealthyNodes } from './unhealthy-nodes.ts';

/** What an administrator says of a store in a cluster: the same words as in stowage.yaml. */
export interface StoreObject extends KubeObject {
  readonly spec: {
    /** Scheme and place; options are beside it. */
    readonly uri: string;
    readonly options?: Readonly<Record<string, string>>;
    /** Made and kept for as long as it stands here. */
    readonly storageClass?: StorageClassSpec;
  };
  readonly status?: StoreStatus;
}

export interface StorageClassSpec {
  /** Left out: as the store. */
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
  /** Those with a problem that the condition MountsHealthy is about; its message names only some. */
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

/** What a core is told of all of them. */
export interface StoreConfigs {
  readonly configs: readonly StoreConfig[];
  /** Those that no store can be, and why; they are no reason to leave out others. */
  readonly invalid: ReadonlyMap<string, StowageError>;
}

/** The same for the controller and on every node. One that is being deleted is as good as gone. */
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

/** Such volumes could be made, and every pod that uses them would wait for its mount. */
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
