import type { NfsMount, NfsQuota } from '#base/nfs-mount.ts';

declare const brand: unique symbol;
type Branded<T, B extends string> = T & { readonly [brand]: B };

/** `sv1-<uuid>`: kept with the volume itself, survives renaming, is never used again. */
export type VolumeId = Branded<string, 'VolumeId'>;
/** Checked against the grammar in names.ts; only that module makes one. */
export type VolumeName = Branded<string, 'VolumeName'>;
export type StoreName = Branded<string, 'StoreName'>;
export type NodeName = Branded<string, 'NodeName'>;
export type OperationId = Branded<string, 'OperationId'>;

export type Labels = Readonly<Record<string, string>>;
/** A file system to put files in, or a raw block device. */
export type Access = 'filesystem' | 'block';

export interface Volume {
  readonly id: VolumeId;
  readonly name: VolumeName;
  readonly store: StoreName;
  /** What was asked for; undefined when nobody gave a size. */
  readonly bytes: bigint | undefined;
  /** Somebody asked that it be held to its size. It can be switched on, never off. */
  readonly enforce: boolean;
  readonly access: Access;
  readonly labels: Labels;
  /** The request that made it: the same request id gives the same volume. */
  readonly requestId: string;
  readonly createdAt: number;
  /** Grows with every change; the REST API's entity tag. */
  readonly revision: number;
  /** The Stowage instance that made or adopted it. */
  readonly instance: string;
}

/** How a store is told which volume is meant: by id, with the name core last knew it by. */
export type VolumeRef = Pick<Volume, 'id' | 'name'>;

/** What core asks a store to make. */
export type VolumeSpec = Pick<
  Volume,
  'id' | 'name' | 'bytes' | 'access' | 'labels' | 'requestId' | 'createdAt' | 'instance'
> &
  Partial<Pick<Volume, 'enforce'>>;

/** A volume as the store sees it now. */
export interface Inspection {
  readonly volume: Volume;
  /** `missing`: the record is there, the data are not. */
  readonly condition: 'ok' | 'missing';
  readonly detail?: string;
  /** Where its data are, below the store's directory. Undefined: under its name. */
  readonly path?: string;
}

export interface Usage {
  readonly bytes: bigint;
  readonly files: bigint;
  /** False: the scan stopped at its deadline, the figures are a lower bound. */
  readonly complete: boolean;
  /** It is certain that nothing is in it: all was counted, or nobody was ever given it. Only this may be taken for empty. */
  readonly empty: boolean;
  readonly measuredAt: number;
}

/** Where the bytes are. Stores emit sources, clients consume them. */
export type Source =
  | { readonly kind: 'directory'; readonly node: NodeName; readonly path: string }
  | {
      /** A file that becomes a loop device. */
      readonly kind: 'loop';
      readonly node: NodeName;
      readonly path: string;
      /** undefined: a raw block volume. */
      readonly filesystem: 'xfs' | 'ext4' | undefined;
      /** A raw block volume whose device refuses writing: a read-only mount of its node would not. */
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

/** How a volume on an NFS server is reached, by the store's options: no secrets, only where they are. */
export interface NfsConnection extends NfsMount {
  /** built-in: our own data path. host: the system's NFS client. */
  readonly client: 'built-in' | 'host';
  /** What the names meant when they were last looked up. */
  readonly addresses: readonly string[];
  /** Undefined: asked of the portmapper. */
  readonly mountPort: number | undefined;
  /** Undefined: any. */
  readonly sourcePorts: 'privileged' | number | undefined;
  /** Undefined: none. A folder with certificates; undefined in it: those that the system trusts. */
  readonly tls: { readonly folder: string | undefined } | undefined;
  readonly network: string | undefined;
  /** `soft`: how long one attempt takes; applications get an error after the last. Undefined: they wait. */
  readonly softMs: number | undefined;
  /**
   * How many attempts follow the first one, on a `soft` mount. Undefined: none. The store's own calls have it too: how often a connection
   * is tried again before a call that was never sent fails.
   */
  readonly retries?: number | undefined;
  /** It is held to its size. Undefined: it is not. */
  readonly quota: NfsQuota | undefined;
}

/** That a host uses a volume: `.stowage/users/<volume id>/<host id>` on the store itself. */
export interface Use {
  /** The id of the host, the same for as long as its Stowage lives. */
  readonly host: string;
  /** The name people know it by. */
  readonly node: NodeName;
  /** Who uses it there, running or stopped. */
  readonly users: readonly Pick<User, 'kind' | 'name'>[];
}

export interface SeenUse extends Use {
  /** It is the one host that may write. */
  readonly writer: boolean;
  /** By the store's own clock, in ms. */
  readonly renewedAt: number;
  /** Its host has been silent for too long. It still counts. */
  readonly stale: boolean;
}

export interface TrashEntry {
  readonly volume: Volume;
  /** By the clock of the host that deleted it: for people only. */
  readonly deletedAt: number;
  /** Not before this time, by the clock of the server that has the files. Undefined: never, or not known yet. */
  readonly expiresAt: number | undefined;
}

/** A volume's file system bound to a path of this node. */
export interface Mount {
  readonly volumeId: VolumeId;
  /** Kept with it, so that it can be unmounted while its store does not answer. */
  readonly source: Source;
  readonly target: string;
  readonly readOnly: boolean;
  readonly user: User;
  readonly since: number;
  /** Stowage made the target itself, so it removes it again. */
  readonly madeTarget: boolean;
}

/** Who a published target belongs to. */
export interface User {
  /** kubelet: it has it staged for pods to come, by the driver of that name. */
  readonly kind: 'path' | 'container' | 'pod' | 'kubelet';
  readonly name: string;
  readonly node: NodeName;
}

export type OnDelete = 'delete' | 'retain' | 'archive';

/** What the administrator says about any store, whatever its kind; users never set these. */
export interface StorePolicy {
  readonly onDelete: OnDelete;
  /** How long `archive` keeps a deleted volume, in ms. */
  readonly retention: number;
  readonly readOnly: boolean;
  readonly maxVolumes: number | undefined;
  readonly maxBytes: bigint | undefined;
  /** For a create without a size. */
  readonly defaultSize: bigint | undefined;
  /** Whether those who use volumes may have some made that live with them. Undefined: where no other machine shares it. */
  readonly inline: boolean | undefined;
}

export interface StoreConfig {
  readonly name: StoreName;
  /** Scheme and place, options as query parameters, without secrets. */
  readonly uri: string;
  /** cluster: an object of Kubernetes. */
  readonly origin: 'file' | 'api' | 'builtin' | 'cluster';
  readonly policy: StorePolicy;
  /** The kind's own options, validated by the kind. */
  readonly options: Readonly<Record<string, string>>;
}

/** One thing on a store that belongs to no volume, or lacks a part. */
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
  /** Of one that failed: the reason of its error. */
  readonly reason?: string;
}

/** Of the file system that a store is on; other stores and files may share it. */
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

/** Work in flight, or that ended lately. The record is written before the work begins and replayed after a crash. */
export interface Operation {
  readonly id: OperationId;
  readonly kind: string;
  readonly store: string | undefined;
  /** The name people know the object by. */
  readonly subject: string;
  /** Everything a replay needs, as JSON values. */
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
  /** Empty: every store. */
  readonly stores: readonly string[];
  readonly createdAt: number;
  readonly expiresAt: number | undefined;
}
