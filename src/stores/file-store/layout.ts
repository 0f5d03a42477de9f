import type { Scope } from '#base/log.ts';
import type { Access, Labels, Source, Usage, Volume, VolumeId, VolumeName, VolumeSpec } from '#core/model.ts';
import type { FileInfo } from './files.ts';
import type { Meta } from './meta.ts';

export type LayoutKind = 'directory' | 'image';

/** How a store's directory holds the data of volumes. The records beside them are the same for every layout. */
export interface Layout {
  readonly kind: LayoutKind;
  readonly access: readonly Access[];
  /** The layout enforces the size of every volume, so every volume needs a size. */
  readonly enforcesCapacity: boolean;
  /** The size of a volume can be enforced on request, by the layout or by the client that mounts it. */
  readonly canEnforce: boolean;
  /** The contents of a volume can only be counted where it is mounted. Its record says whether a client ever got it to mount. */
  readonly opaque: boolean;
  /** Names of a volume's data in the root of the store and in the trash. */
  readonly suffix: '' | '.img';
  readonly trashName: 'data' | 'image';
  /** The file system that a new volume of that size gets. Present if volumes have file systems of their own. */
  filesystemFor?(bytes: bigint): string;
  /** Throws if a volume of that size and access cannot be created here. */
  refuseUnsupported(bytes: bigint | undefined, access: Access): void;
  /** Paths of data below the root. Undefined: beside the record, under the volume's name. */
  readonly paths?: DataPaths;
  /** Creates complete data at `path` in one step. Nothing may exist there before. */
  make(want: Pick<VolumeSpec, 'id' | 'bytes' | 'access'>, path: string, scope: Scope): Promise<void>;
  /** Moves the data away in one step, whatever their size; `reclaim` frees the space. Idempotent: succeeds if there are no data. */
  discard(path: string, id: VolumeId): Promise<void>;
  /**
   * Like `discard`, but throws 'volume-not-empty' and keeps the data if they hold anything, atomically. Call it with the volume locked
   * and a record that was read under the lock. Idempotent: succeeds if there are no data.
   */
  discardIfEmpty(path: string, meta: Meta): Promise<void>;
  /** Why this cannot be a volume's data, completing "it …". Undefined: it can. */
  unsuitableBecause(found: FileInfo): string | undefined;
  grow(path: string, meta: Meta, bytes: bigint, scope: Scope): Promise<void>;
  source(path: string, volume: Pick<Volume, 'id' | 'bytes' | 'enforce' | 'access'>): Promise<Source>;
  /** Removes the volume's quota records, which can be recreated. Call it before the data are removed. Idempotent. */
  removeQuota?(id: VolumeId): Promise<void>;
  usage(path: string, meta: Pick<Meta, 'unused'>, scope: Scope): Promise<Usage>;
  /** Whether the data are a store themselves. A store cannot become a volume of another store. */
  isStore(path: string): Promise<boolean>;
  /** Looks inside data that have no record. */
  inspectData(path: string): Promise<DataInspection>;
}

/** Paths of volumes' data by the administrator's path template. */
export interface DataPaths {
  /** The path of a new volume, relative to the root. */
  pathFor(want: Pick<VolumeSpec, 'id' | 'name' | 'labels'>): string;
  /** Number of components of such a path. */
  readonly depth: number;
  /** The volume that the template would put at this path. Undefined: none, or that cannot be determined. */
  volumeAt(path: string): { readonly name: VolumeName; readonly labels: Labels } | undefined;
}

export interface DataInspection {
  /** Why it cannot be a volume. */
  readonly reason?: string;
  readonly bytes?: bigint;
  /** 'block' for a raw image without a file system. */
  readonly access: Access;
}
