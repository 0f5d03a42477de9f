import type { NfsMount, NfsQuota } from '#base/nfs-mount.ts';

declare const brand: unique symbol;
type Branded<T, B extends string> = T & { readonly [brand]: B };

/** `sv1-<uuid>`: stored with the volume, survives renames, never reused. */
export type VolumeId = Branded<string, 'VolumeId'>;
/** Only names.ts creates these, after checking the grammar. */
export type VolumeName = Branded<string, 'VolumeName'>;
export type StoreName = Branded<string, 'StoreName'>;
export type NodeName = Branded<string, 'NodeName'>;
export type OperationId = Branded<string, 'OperationId'>;

export type Labels = Readonly<Record<string, string>>;
/** A file system, or a raw block device. */
export type Access = 'filesystem' | 'block';

export interface Volume {
  readonly id: VolumeId;
  readonly name: VolumeName;
  readonly store: StoreName;
  /** The requested size. Undefined: none was requested. */
  readonly bytes: bigint | undefined;
  /** The size is a hard limit. Can be switched on, never off. */
  readonly enforce: boolean;
  readonly access: Access;
  readonly labels: Labels;
  /** The request that created the volume: the same request id gives the same volume. */
  readonly requestId: string;
  readonly createdAt: number;
  /** Increases with every change. The entity tag in the REST API. */
  readonly revision: number;
  /** The Stowage instance that created or adopted the volume. */
  readonly instance: string;
}

/** Identifies a volume to its store: the id, and the last name that core knows. */
export type VolumeRef = Pick<Volume, 'id' | 'name'>;

/** A request to a store to create a volume. */
export type VolumeSpec = Pick<
  Volume,
  'id' | 'name' | 'bytes' | 'access' | 'labels' | 'requestId' | 'createdAt' | 'instance'
> &
  Partial<Pick<Volume, 'enforce'>>;

/** A volume as the store sees it now. */
export interface Inspection {
  readonly volume: Volume;
  /** `missing`: the record exists, the data does not. */
  readonly condition: 'ok' | 'missing';
  readonly detail?: string;
  /** The path of the data in the store's directory. Undefined: the volume's name. */
  readonly path?: string;
}

export interface Usage {
  readonly bytes: bigint;
  readonly files: bigint;
  /** False: the scan reached its deadline, so the figures are lower bounds. */
  readonly complete: boolean;
  /** The volume is certainly empty: everything was counted, or it was never mounted. Do not infer emptiness from the other fields. */
  readonly empty: boolean;
  readonly measuredAt: number;
}

/** Where a volume's data is. Stores emit sources, clients mount them. */
export type Source =
  | { readonly kind: 'directory'; readonly node: NodeName; readonly path: string }
  | {
      /** A file that becomes a loop device. */
      readonly kind: 'loop';
      readonly node: NodeName;
      readonly path: string;
      /** undefined: a raw block volume. */
      readonly filesystem: 'xfs' | 'ext4' | undefined;
      /** For a raw block volume: the device itself is read-only. A read-only bind mount of the device node would not prevent writes. */
      readonly readOnly?: boolean;
    }
  | {
      readonly kind: 'nfs';
      /** Names or addresses of one server, as the administrator wrote them. */
      readonly hosts: readonly [string, ...string[]];
      readonly path: string;
      readonly way: NfsConnection;
    };

export type SourceKind = Source['kind'];
export type SourceOf<K extends SourceKind> = Extract<Source, { readonly kind: K }>;

/** How to connect to a volume's NFS server, from the store's options. Contains no secrets, only paths to them. */
export interface NfsConnection extends NfsMount {
  /** built-in: our own data path. host: the system's NFS client. */
  readonly client: 'built-in' | 'host';
  /** The addresses that the host names last resolved to. */
  readonly addresses: readonly string[];
  /** Undefined: ask the portmapper. */
  readonly mountPort: number | undefined;
  /** Undefined: any. */
  readonly sourcePorts: 'privileged' | number | undefined;
  /** Undefined: no TLS. `folder` has the certificates; without one, the system's trust store is used. */
  readonly tls: { readonly folder: string | undefined } | undefined;
  readonly network: string | undefined;
  /** The timeout of each attempt on a `soft` mount; after the last one applications get an error. Undefined: a `hard` mount. */
  readonly softMs: number | undefined;
  /**
   * The retries after the first attempt on a `soft` mount. Undefined: none. Also applies to the store's own calls: the reconnect attempts
   * before a call that was never sent fails.
   */
  readonly retries?: number | undefined;
  /** Undefined: the size is not enforced. */
  readonly quota: NfsQuota | undefined;
}

/** A use record: a host uses a volume. Stored on the store itself as `.stowage/users/<volume id>/<host id>`. */
export interface Use {
  /** The host's id: the instance id of its Stowage. */
  readonly host: string;
  /** The host's name for people. */
  readonly node: NodeName;
  /** The users on that host, running or stopped. */
  readonly users: readonly Pick<User, 'kind' | 'name'>[];
}

export interface SeenUse extends Use {
  /** This host has the volume as its single writer. */
  readonly writer: boolean;
  /** By the store's own clock, in ms. */
  readonly renewedAt: number;
  /** The host has not renewed the record for too long. The record still counts. */
  readonly stale: boolean;
}

export interface TrashEntry {
  readonly volume: Volume;
  /** By the clock of the host that deleted the volume. For display only. */
  readonly deletedAt: number;
  /** Purged no earlier than this, by the clock of the server that has the files. Undefined: never, or not known yet. */
  readonly expiresAt: number | undefined;
}

/** A volume bind-mounted at a target path on this node. */
export interface Mount {
  readonly volumeId: VolumeId;
  /** Recorded so that the volume can be unmounted while its store does not answer. */
  readonly source: Source;
  readonly target: string;
  readonly readOnly: boolean;
  readonly user: User;
  readonly since: number;
  /** Stowage created the target, and removes it after the unmount. */
  readonly madeTarget: boolean;
}

export interface LiveMount extends Mount {
  /** According to the kernel's mount table. */
  readonly mounted: boolean;
}

/** The user of a published target. */
export interface User {
  /** kubelet: has the volume staged for later pods; `name` is the CSI driver. */
  readonly kind: 'path' | 'container' | 'pod' | 'kubelet';
  readonly name: string;
  readonly node: NodeName;
}

export type OnDelete = 'delete' | 'retain' | 'archive';

/** The administrator's policy for a store of any kind. Users never set it. */
export interface StorePolicy {
  readonly onDelete: OnDelete;
  /** How long `archive` keeps deleted volumes, in ms. */
  readonly retention: number;
  readonly readOnly: boolean;
  readonly maxVolumes: number | undefined;
  readonly maxBytes: bigint | undefined;
  /** The size of volumes that are created without one. */
  readonly defaultSize: bigint | undefined;
  /** Whether pods may have inline volumes on this store. Undefined: only if no other machine shares the store. */
  readonly inline: boolean | undefined;
}

export interface StoreConfig {
  readonly name: StoreName;
  /** Scheme and location, with options as query parameters. No secrets. */
  readonly uri: string;
  /** cluster: a Store object in Kubernetes. */
  readonly origin: 'file' | 'api' | 'builtin' | 'cluster';
  readonly policy: StorePolicy;
  /** The kind's own options, validated by the kind. */
  readonly options: Readonly<Record<string, string>>;
}

/** Something on a store that belongs to no volume, or a volume with a missing part. */
export interface Orphan {
  readonly store: StoreName;
  readonly kind:
    | 'unrecorded-directory'
    | 'stranger'
    | 'unknown-volume'
    | 'missing-data'
    | 'unreadable-record'
    | 'leftover';
  readonly name: string;
  readonly detail: string;
  readonly action: string;
}

export interface CheckStep {
  readonly step: string;
  readonly ok: boolean;
  readonly detail: string;
  readonly action?: string;
  /** The error reason of a failed step. */
  readonly reason?: string;
}

/** The size and free space of a store's file system, which other stores and files may share. */
export interface Room {
  readonly totalBytes: bigint;
  readonly freeBytes: bigint;
}

export interface StoreCheck {
  readonly ok: boolean;
  readonly steps: readonly CheckStep[];
  readonly totalBytes: bigint | undefined;
  readonly freeBytes: bigint | undefined;
}

export type OperationState = 'running' | 'done' | 'failed' | 'canceled';

/** Work in flight or recently ended. Recorded before the work begins and replayed after a crash. */
export interface Operation {
  readonly id: OperationId;
  readonly kind: string;
  readonly store: string | undefined;
  /** The name of the object for people. */
  readonly subject: string;
  /** Everything that a replay needs, as JSON values. */
  readonly params: Readonly<Record<string, unknown>>;
  readonly state: OperationState;
  readonly startedAt: number;
  readonly endedAt: number | undefined;
  readonly error:
    | { readonly code: string; readonly reason: string; readonly message: string; readonly action: string }
    | undefined;
}

export type Role = 'viewer' | 'user' | 'admin';

export interface Token {
  readonly id: string;
  readonly name: string;
  readonly role: Role;
  /** Empty: all stores. */
  readonly stores: readonly string[];
  readonly createdAt: number;
  readonly expiresAt: number | undefined;
}
