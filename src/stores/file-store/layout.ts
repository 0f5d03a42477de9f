import type { Scope } from '#base/log.ts';
import type { Access, Labels, Source, Usage, Volume, VolumeId, VolumeName, VolumeSpec } from '#core/model.ts';
import type { FileInfo } from './files.ts';
import type { Meta } from './meta.ts';

export type LayoutKind = 'directory' | 'image';

/** How a volume's data lie in the store's directory. The records beside them are the same for every layout. */
export interface Layout {
  readonly kind: LayoutKind;
  readonly access: readonly Access[];
  /** Every volume is held to its size, so it needs one. */
  readonly enforcesCapacity: boolean;
  /** A volume that asks for it is held to its size, by whoever mounts it if not by the layout. */
  readonly canEnforce: boolean;
  /** What is in a volume can only be counted where it is mounted: its record says whether anybody was ever given it. */
  readonly opaque: boolean;
  /** What the data of a volume are called: in the root of the store, and in the trash. */
  readonly suffix: '' | '.img';
  readonly trashName: 'data' | 'image';
  /** Present where volumes have file systems of their own: which one a new volume of that size gets. */
  filesystemFor?(bytes: bigint): string;
  /** Throws when a volume of that size and access cannot be made here. */
  refuseUnsupported(bytes: bigint | undefined, access: Access): void;
  /** Where data go, below the root. Undefined: beside the record, under the volume's name. */
  readonly paths?: DataPaths;
  /** Makes complete data appear at `path` in one step, where nothing was. */
  make(want: Pick<VolumeSpec, 'id' | 'bytes' | 'access'>, path: string, scope: Scope): Promise<void>;
  /** Gets the data out of the way in one step, however large; `reclaim` frees their room. Absent is success. */
  discard(path: string, id: VolumeId): Promise<void>;
  /**
   * The same, by a step that fails when the data hold anything: then they stay, and it throws 'volume-not-empty'. Call it with
   * the volume locked and a record that was read since. Absent is success.
   */
  discardIfEmpty(path: string, meta: Meta): Promise<void>;
  /** Completes "it …" when what lies there cannot be a volume's data. */
  unsuitableBecause(found: FileInfo): string | undefined;
  grow(path: string, meta: Meta, bytes: bigint, scope: Scope): Promise<void>;
  source(path: string, volume: Pick<Volume, 'id' | 'bytes' | 'enforce' | 'access'>): Promise<Source>;
  /** Removes what is kept of a volume beside its data, and can be made again: before they go. Absent is success. */
  removeQuota?(id: VolumeId): Promise<void>;
  usage(path: string, meta: Pick<Meta, 'unused'>, scope: Scope): Promise<Usage>;
  /** The data are a store themselves: its volumes must not become the content of one. */
  isStore(path: string): Promise<boolean>;
  /** Looks inside data that nobody recorded. */
  inspectData(path: string): Promise<DataInspection>;
}

/** Where the data of volumes go, by a rule that the administrator gave. */
export interface DataPaths {
  /** Of a new volume, below the root. */
  pathFor(want: Pick<VolumeSpec, 'id' | 'name' | 'labels'>): string;
  /** How many names such a path has. */
  readonly depth: number;
  /** The volume that the rule would have put there. Undefined: it would have put none there, or that cannot be told. */
  volumeAt(path: string): { readonly name: VolumeName; readonly labels: Labels } | undefined;
}

export interface DataInspection {
  /** Why it cannot be a volume. */
  readonly reason?: string;
  readonly bytes?: bigint;
  /** What it is: a raw image has no file system. */
  readonly access: Access;
}
