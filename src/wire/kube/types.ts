/** The Kubernetes objects and fields that Stowage uses. Responses contain more fields. */

type StringMap = Readonly<Record<string, string>>;

export interface OwnerReference {
  readonly apiVersion: string;
  readonly kind: string;
  readonly name: string;
  readonly uid: string;
  readonly controller?: boolean;
  readonly blockOwnerDeletion?: boolean;
}

export interface ObjectMeta {
  readonly name?: string;
  readonly generateName?: string;
  readonly namespace?: string;
  readonly uid?: string;
  readonly resourceVersion?: string;
  readonly generation?: number;
  readonly creationTimestamp?: string;
  readonly deletionTimestamp?: string;
  readonly labels?: StringMap;
  readonly annotations?: StringMap;
  readonly finalizers?: readonly string[];
  readonly ownerReferences?: readonly OwnerReference[];
}

export interface KubeObject {
  readonly apiVersion?: string;
  readonly kind?: string;
  readonly metadata: ObjectMeta;
}

export interface ObjectReference {
  readonly apiVersion?: string;
  readonly kind?: string;
  readonly namespace?: string;
  readonly name?: string;
  readonly uid?: string;
  readonly resourceVersion?: string;
  readonly fieldPath?: string;
}

export interface Condition {
  readonly type: string;
  readonly status: 'True' | 'False' | 'Unknown';
  readonly reason?: string;
  readonly message?: string;
  readonly lastTransitionTime?: string;
  readonly observedGeneration?: number;
}

export interface SelectorRequirement {
  readonly key: string;
  readonly operator: string;
  readonly values?: readonly string[];
}

export interface NodeSelector {
  readonly nodeSelectorTerms: readonly { readonly matchExpressions?: readonly SelectorRequirement[] }[];
}

export interface LabelSelector {
  readonly matchLabels?: StringMap;
  readonly matchExpressions?: readonly SelectorRequirement[];
}

interface SecretReference {
  readonly name?: string;
  readonly namespace?: string;
}

export interface PersistentVolume extends KubeObject {
  readonly spec: {
    readonly capacity?: StringMap;
    readonly accessModes?: readonly string[];
    readonly volumeMode?: string;
    readonly storageClassName?: string;
    readonly persistentVolumeReclaimPolicy?: string;
    readonly mountOptions?: readonly string[];
    readonly claimRef?: ObjectReference;
    readonly nodeAffinity?: { readonly required?: NodeSelector };
    readonly csi?: {
      readonly driver: string;
      readonly volumeHandle: string;
      readonly fsType?: string;
      readonly readOnly?: boolean;
      readonly volumeAttributes?: StringMap;
      readonly nodeStageSecretRef?: SecretReference;
      readonly nodePublishSecretRef?: SecretReference;
      readonly controllerExpandSecretRef?: SecretReference;
      readonly nodeExpandSecretRef?: SecretReference;
    };
    readonly nfs?: { readonly server: string; readonly path: string; readonly readOnly?: boolean };
  };
  readonly status?: { readonly phase?: string; readonly reason?: string; readonly message?: string };
}

/** The data source of a claim. */
interface SourceReference extends ObjectReference {
  /** Undefined: the core group. */
  readonly apiGroup?: string;
}

export interface PersistentVolumeClaim extends KubeObject {
  readonly spec: {
    readonly accessModes?: readonly string[];
    readonly resources?: { readonly requests?: StringMap; readonly limits?: StringMap };
    readonly storageClassName?: string;
    readonly volumeName?: string;
    readonly volumeMode?: string;
    readonly selector?: LabelSelector;
    readonly dataSource?: SourceReference;
    readonly dataSourceRef?: SourceReference;
  };
  readonly status?: {
    readonly phase?: string;
    readonly capacity?: StringMap;
    readonly accessModes?: readonly string[];
    readonly conditions?: readonly Condition[];
    readonly allocatedResources?: StringMap;
    readonly allocatedResourceStatuses?: StringMap;
  };
}

export interface StorageClass extends KubeObject {
  readonly provisioner: string;
  readonly parameters?: StringMap;
  readonly reclaimPolicy?: string;
  readonly volumeBindingMode?: string;
  readonly allowVolumeExpansion?: boolean;
  readonly mountOptions?: readonly string[];
  readonly allowedTopologies?: readonly {
    readonly matchLabelExpressions?: readonly { readonly key: string; readonly values: readonly string[] }[];
  }[];
}

export interface Taint {
  readonly key: string;
  readonly value?: string;
  readonly effect: string;
}

export interface Node extends KubeObject {
  readonly spec?: { readonly taints?: readonly Taint[]; readonly unschedulable?: boolean };
  readonly status?: {
    readonly conditions?: readonly Condition[];
    readonly addresses?: readonly { readonly type: string; readonly address: string }[];
  };
}

export interface CsiNode extends KubeObject {
  readonly spec: {
    readonly drivers: readonly {
      readonly name: string;
      readonly nodeID: string;
      readonly topologyKeys?: readonly string[];
      readonly allocatable?: { readonly count?: number };
    }[];
  };
}

/** A container of a pod. */
interface Container {
  readonly name: string;
  readonly volumeMounts?: readonly { readonly name: string }[];
  readonly volumeDevices?: readonly { readonly name: string }[];
}

interface ContainerStatus {
  readonly name: string;
  readonly state?: {
    readonly running?: { readonly startedAt?: string };
    readonly terminated?: { readonly reason?: string; readonly finishedAt?: string | null };
  };
}

export interface Pod extends KubeObject {
  readonly spec?: {
    readonly nodeName?: string;
    /** The pod uses the network of its node. */
    readonly hostNetwork?: boolean;
    /** False: the pod has a user namespace. */
    readonly hostUsers?: boolean;
    readonly containers?: readonly Container[];
    readonly initContainers?: readonly Container[];
    readonly volumes?: readonly {
      readonly name: string;
      readonly persistentVolumeClaim?: { readonly claimName: string; readonly readOnly?: boolean };
      readonly ephemeral?: object;
      readonly csi?: { readonly driver: string; readonly volumeAttributes?: StringMap };
    }[];
  };
  readonly status?: {
    readonly phase?: string;
    readonly podIP?: string;
    readonly containerStatuses?: readonly ContainerStatus[];
    readonly initContainerStatuses?: readonly ContainerStatus[];
    readonly conditions?: readonly Condition[];
  };
}

/** policy/v1; created at `pods/<name>/eviction`. */
export interface Eviction extends KubeObject {
  readonly deleteOptions?: { readonly preconditions?: { readonly uid?: string } };
}

/** events.k8s.io/v1. */
export interface KubeEvent extends KubeObject {
  /** In microseconds, like the other times here. */
  readonly eventTime: string;
  readonly reportingController: string;
  readonly reportingInstance: string;
  readonly action: string;
  readonly reason: string;
  readonly regarding: ObjectReference;
  readonly related?: ObjectReference;
  readonly note: string;
  readonly type: 'Normal' | 'Warning';
  readonly series?: { readonly count: number; readonly lastObservedTime: string };
}

export interface Lease extends KubeObject {
  readonly spec?: {
    readonly holderIdentity?: string;
    readonly leaseDurationSeconds?: number;
    readonly acquireTime?: string;
    readonly renewTime?: string;
    readonly leaseTransitions?: number;
  };
}

export interface Secret extends KubeObject {
  readonly type?: string;
  /** Base64 values. */
  readonly data?: StringMap;
}

export interface ConfigMap extends KubeObject {
  readonly data?: StringMap;
}

/** discovery.k8s.io/v1. */
export interface EndpointSlice extends KubeObject {
  /** Immutable. */
  readonly addressType: 'IPv4' | 'IPv6' | 'FQDN';
  /** Null means an empty list in these two fields. */
  readonly endpoints:
    | readonly {
        readonly addresses: readonly string[];
        readonly conditions?: { readonly ready?: boolean; readonly serving?: boolean; readonly terminating?: boolean };
      }[]
    | null;
  readonly ports?: readonly { readonly name?: string; readonly port?: number; readonly protocol?: string }[] | null;
}

/** v1 of the core group: the API server's own proxy uses it. */
export interface Endpoints extends KubeObject {
  readonly subsets?: readonly {
    readonly addresses?: readonly { readonly ip: string; readonly targetRef?: ObjectReference }[];
    readonly ports?: readonly { readonly name?: string; readonly port: number; readonly protocol?: string }[];
  }[];
}

export interface CsiStorageCapacity extends KubeObject {
  readonly storageClassName: string;
  readonly nodeTopology?: LabelSelector;
  readonly capacity?: string;
  readonly maximumVolumeSize?: string;
}

export interface CsiDriver extends KubeObject {
  readonly spec: {
    readonly attachRequired?: boolean;
    readonly podInfoOnMount?: boolean;
    readonly storageCapacity?: boolean;
    readonly fsGroupPolicy?: string;
    readonly volumeLifecycleModes?: readonly string[];
    readonly requiresRepublish?: boolean;
    readonly seLinuxMount?: boolean;
    readonly tokenRequests?: readonly { readonly audience: string; readonly expirationSeconds?: number }[];
  };
}

export interface Namespace extends KubeObject {
  readonly status?: { readonly phase?: string };
}

export interface TokenReview extends KubeObject {
  readonly spec: { readonly token: string; readonly audiences: readonly string[] };
  readonly status?: {
    readonly authenticated?: boolean;
    readonly audiences?: readonly string[];
    readonly error?: string;
    readonly user?: {
      readonly username?: string;
      readonly uid?: string;
      readonly groups?: readonly string[];
      readonly extra?: Readonly<Record<string, readonly string[]>>;
    };
  };
}

export interface SubjectAccessReview extends KubeObject {
  readonly spec: {
    readonly user?: string;
    readonly uid?: string;
    readonly groups?: readonly string[];
    readonly extra?: Readonly<Record<string, readonly string[]>>;
    readonly resourceAttributes?: Readonly<
      Partial<Record<'group' | 'version' | 'resource' | 'subresource' | 'verb' | 'namespace' | 'name', string>>
    >;
    readonly nonResourceAttributes?: { readonly path: string; readonly verb: string };
  };
  readonly status?: { readonly allowed: boolean; readonly denied?: boolean; readonly reason?: string };
}

/** Created at `serviceaccounts/<name>/token`. */
export interface TokenRequest extends KubeObject {
  readonly spec: {
    readonly audiences: readonly string[];
    readonly expirationSeconds?: number;
    readonly boundObjectRef?: ObjectReference;
  };
  readonly status?: { readonly token: string; readonly expirationTimestamp: string };
}
