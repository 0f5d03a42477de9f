import type { Log, Scope } from '#base/log.ts';
import type { ContainerRecords } from './containers.ts';
import type {
  Access,
  Inspection,
  Labels,
  Mount,
  NodeName,
  Operation,
  OperationId,
  OperationState,
  Orphan,
  Room,
  SeenUse,
  Source,
  SourceKind,
  SourceOf,
  StoreCheck,
  StoreConfig,
  StoreName,
  StorePolicy,
  Token,
  TrashEntry,
  Usage,
  Use,
  Volume,
  VolumeId,
  VolumeName,
  VolumeRef,
  VolumeSpec,
} from './model.ts';
import type { Placement } from './placement.ts';

/**
 * Provides volumes. Every method is idempotent, even if a crash interrupted the first call: a second call returns the same result. Errors
 * are StowageErrors. Optional members are facets: the presence of a facet is the capability, and core/store-facets.ts has the errors for
 * missing facets.
 */
export interface Store {
  readonly name: StoreName;
  readonly access: readonly Access[];
  /** The source kinds that `source()` can return. */
  readonly sources: readonly SourceKind[];
  /**
   * The same request id and parameters return the same volume. Throws 'exists' if another volume has the name. A failure leaves nothing
   * behind.
   */
  create(spec: VolumeSpec, scope: Scope): Promise<Volume>;
  /** Reads the volume from the store itself. Undefined: the store answered and has no such volume. */
  get(name: VolumeName, scope: Scope): Promise<Inspection | undefined>;
  /** All recorded volumes, in no particular order. Omits unreadable records (see orphans). */
  list(scope: Scope): AsyncIterable<Volume>;
  /** Destroys data and record. Succeeds if the volume does not exist, and leaves another volume alone that has the name by now. */
  delete(volume: VolumeRef, scope: Scope, mode?: DeletionMode): Promise<void>;
  label(volume: VolumeRef, labels: Labels, scope: Scope): Promise<Volume>;
  source(volume: VolumeRef, scope: Scope): Promise<Source>;
  check(scope: Scope): Promise<StoreCheck>;
  close(): Promise<void>;

  /**
   * The id recorded in the store itself, constant for the store's lifetime. Absent: the store has no such record, so core cannot
   * detect that another store took its place.
   */
  readonly identity?: string | undefined;
  /** Reads the identity of another store in a subdirectory. Present if one location can have several URIs. */
  identityOfSubdirectory?(path: string): Promise<string | undefined>;
  /** Present if names are cheaper to list than volumes. Includes the names of unreadable records. */
  names?(scope: Scope): Promise<readonly VolumeName[]>;
  /** Present if other hosts can add, change and remove volumes. A listing then asks the store first. */
  readonly changedByOthers?: ChangedByOthers;
  /** Present if the store can enforce volume sizes. Absent: a size is informational. */
  readonly enforcement?: Enforcement;
  /** The file system that a new volume of this size gets. Present if volumes have their own file systems. */
  filesystemFor?(bytes: bigint): string;
  /** Checks that the server answers; throws otherwise. Present if the store has a server. */
  ping?(scope: Scope): Promise<void>;
  /**
   * Succeeds if the size is unchanged, and throws 'out-of-range' for a smaller size. The client grows the file system. Absent: core throws
   * 'unsupported'.
   */
  expand?(volume: VolumeRef, bytes: bigint, scope: Scope): Promise<Volume>;
  /**
   * Succeeds if already renamed. Throws 'not-found' if neither name has this id, 'exists' if another volume has the new name. Absent: core
   * throws 'unsupported'.
   */
  rename?(volume: VolumeRef, newName: VolumeName, scope: Scope): Promise<Volume>;
  /** The usage of the volume itself, not of the file system around it. Absent: core reports the mount's usage, or none. */
  usage?(volume: VolumeRef, scope: Scope): Promise<Usage>;
  /** The total and free space, with a single call to the disk or server. Absent: unknown. */
  room?(scope: Scope): Promise<Room>;
  /** Throws if a writable mount would be useless, such as when no container could write to it. Absent: every writable mount is usable. */
  checkWritable?(source: Source, scope: Scope): Promise<void>;
  /**
   * Records durably that the volume was mounted, so that it is never considered empty again. Core calls it before every mount. Present if
   * the store cannot see what a volume contains. Idempotent: returns success if already done.
   */
  markUsed?(volume: VolumeRef, scope: Scope): Promise<void>;
  /**
   * Changes the group of all files of the volume. Present if a group can use a volume only if it owns the files on the store. If the top
   * directory already has the group, returns success after one call. A call continues what an interrupted call left.
   */
  chownToGroup?(source: Source, group: number, scope: Scope): Promise<void>;
  /** Present if the store can keep deleted volumes for a while. Absent: onDelete=archive is rejected. */
  readonly trash?: Trash;
  /**
   * Present if the store can forget a volume without touching its data, and turn existing data into a volume. Absent: onDelete=retain
   * is rejected.
   */
  readonly adoption?: AdoptionFacet;
  /** Present if a crash can leave unfinished work on the store, or if the store can contain things that belong to no volume. */
  readonly housekeeping?: Housekeeping;
  /** The use records of hosts, kept on the store itself. Present if other hosts can use the store's volumes. */
  readonly uses?: Uses;
}

export interface ChangedByOthers {
  /**
   * The names that `names` returns, each with a mark that changes when the volume changes. Absent: a listing detects added and
   * removed names, but not changes of recorded volumes.
   */
  revisions?(scope: Scope): Promise<ReadonlyMap<VolumeName, string>>;
}

export interface Enforcement {
  /** The store enforces the size of every volume, so `create` requires a size. */
  readonly always: boolean;
  /** Enforces the volume's size from now on. Idempotent: returns success if already done. Absent: the store is read-only. */
  enforce?(volume: VolumeRef, scope: Scope): Promise<Volume>;
}

export interface DeletionMode {
  /**
   * The step that removes the data must itself fail if there is data ('conflict', reason 'volume-not-empty'): an earlier check
   * would be racy. Volumes whose content can't be counted must never have been mounted. A rejected deletion changes nothing. Missing data
   * counts as empty, so that an interrupted deletion can be completed. A store that cannot tell whether a volume is empty must reject the
   * deletion.
   */
  readonly onlyIfEmpty?: boolean;
}

export interface AdoptionFacet {
  /** Existing data without a record: candidates for adoption, and data that cannot be adopted, with the reason. */
  adoptable(scope: Scope): Promise<readonly Adoptable[]>;
  /** Records existing data as a volume, without copying. A released volume gets its old id back. */
  adopt(name: VolumeName, spec: VolumeSpec, scope: Scope): Promise<Volume>;
  /** Takes over a volume that another instance recorded. */
  claim(volume: VolumeRef, instance: string, scope: Scope): Promise<Volume>;
  /** Forgets the volume and leaves its data in place. `adopt` restores it under the same id. */
  release(volume: VolumeRef, scope: Scope): Promise<void>;
}

export interface Housekeeping {
  /**
   * Finishes work that a crash interrupted, based only on the store's content: creates, renames, deletes, moves to and from
   * the trash. Called once after opening, after the replay of recorded operations and before anybody else may use the
   * store. Touches only what this instance created.
   */
  sweep(scope: Scope): Promise<void>;
  orphans(scope: Scope): Promise<readonly Orphan[]>;
  /**
   * Frees the space of deleted volumes. Present if deletion does not do that itself. Safe at any time; stops at the signal and resumes
   * at the next call.
   */
  reclaim?(scope: Scope): Promise<void>;
}

export interface Adoptable {
  readonly name: string;
  /** Absent: it can be adopted. */
  readonly reason?: string;
}

export interface Trash {
  /**
   * Moves a volume into the trash. Succeeds if the volume does not exist or is already there. Returns when its retention ends, by the clock
   * of the server that has the files. Undefined: not known yet.
   */
  put(
    volume: VolumeRef,
    deletion: { readonly deletedAt: number; readonly retention: number },
    scope: Scope,
  ): Promise<number | undefined>;
  list(scope: Scope): Promise<readonly TrashEntry[]>;
  /** Returns success if already restored under this name. */
  restore(id: VolumeId, name: VolumeName, scope: Scope): Promise<Volume>;
  /** Purges immediately. Succeeds if there is no such entry. `only`: purge only the entry of this deletion, not of a later one. */
  purge(id: VolumeId, scope: Scope, only?: { readonly deletedAt: number }): Promise<void>;
  /**
   * The entries that this host may purge now. Counts the time during which it observed them, so call it regularly.
   * `retention` applies to entries without a date, from older versions.
   */
  listExpired(retention: number, scope: Scope): Promise<readonly TrashEntry[]>;
  /** Checks again with the volume locked, then purges. False: this host may not purge the entry, or no longer. */
  purgeExpired(id: VolumeId, scope: Scope): Promise<boolean>;
}

/**
 * Use records: which hosts use a volume. A record becomes stale when its host stops renewing it; a stale record still counts until a
 * person breaks it. While a volume has one, no host can delete, release, archive or rename it ('in-use'). The store enforces
 * this, since only the store can exclude a host that starts to use the volume at that moment.
 */
export interface Uses {
  /**
   * Creates or renews the record, with the time of the store's clock. Throws 'not-found' if the volume does not exist or is in the trash.
   */
  put(volume: VolumeRef, use: Use, scope: Scope): Promise<void>;
  /** Removes a host's record and its writer lease. Succeeds if the host has none. */
  remove(volume: VolumeId, host: string, scope: Scope): Promise<void>;
  /** All use records. Includes the writer even if it has no use record. */
  list(volume: VolumeId, scope: Scope): Promise<readonly SeenUse[]>;
  /**
   * Makes this host the single writer. Succeeds if it already is. Throws 'in-use' if another host is, even with a stale record, and
   * 'not-found' like `put`.
   */
  takeWriter(volume: VolumeRef, host: string, scope: Scope): Promise<void>;
  /** Does nothing if another host is the writer. */
  dropWriter(volume: VolumeId, host: string, scope: Scope): Promise<void>;
}

/** Opens the stores of one URI scheme. */
export interface StoreKind {
  readonly scheme: string;
  readonly placement: Placement;
  /** Present if volumes are in a directory of this machine. Returns undefined for a URI that cannot be parsed. */
  localDirectory?(config: StoreConfig): LocalDirectory | undefined;
  /** The client's name for users (`bind`, `loop`, …). Known while the store is closed. */
  clientName(config: StoreConfig): string;
  /** Describes the stores of this kind that have an optional capability, for the advice in errors: "a local store with layout=image". */
  readonly offers?: StoreOffers;
  /** The kind's own options, with one line of help each. */
  readonly options: Readonly<Record<string, string>>;
  /** Throws a StowageError for options or a location that can never be valid. */
  validate?(config: StoreConfig): void;
  /** Opens and locks the store. Throws a StowageError if the location or the options are wrong. */
  open(config: StoreConfig, policy: StorePolicy, context: StoreContext, scope: Scope): Promise<Store>;
  /**
   * Checks the connection to a store that cannot be opened, step by step. Absent: the error from `open` says everything. `from`: the
   * network to check from, instead of the one that the store's own traffic uses.
   */
  probe?(config: StoreConfig, policy: StorePolicy, scope: Scope, from?: string): Promise<StoreCheck>;
}

/** Each text describes stores that have the capability. Absent: no store of the kind has it. */
export interface StoreOffers {
  /** Enforce the sizes of volumes. */
  readonly enforcement?: string;
  readonly blockVolumes?: string;
  /** Map all users to one, to whom all files belong. */
  readonly singleUser?: string;
}

export interface LocalDirectory {
  readonly path: string;
  /** The directory contains images for loop devices. */
  readonly hasImages: boolean;
}

export interface StoreContext {
  readonly instance: string;
  readonly node: NodeName;
  /** The store's identity when it was last open. A location with another identity, or none, is rejected. Undefined: never opened. */
  readonly identity?: string | undefined;
  /** Undefined: this process has no mark, and a predecessor may still be alive. */
  readonly marks?: ProcessMarks | undefined;
}

/** Identifies processes in lock files of shared stores, even processes of the same instance. */
export interface ProcessMarks {
  /** A random number from 2 to 2^29 - 1, unique to this process. */
  readonly own: number;
  /** The marks of predecessors that are certainly dead: this process may take their locks at once. */
  readonly dead: readonly number[];
}

/** Where a volume is staged: one mount per volume and node. */
export interface StagingTarget {
  readonly volumeId: VolumeId;
  /** `<mounts folder>/<volume id>` */
  readonly path: string;
}

/** Mounts one kind of source on this node. Mounts outlive the process, so mounting and unmounting are two calls, not a disposable. */
export interface Client<K extends SourceKind = SourceKind> {
  readonly kind: K;
  /** The data is on this node: other hosts cannot use it, and stores keep no use records for it. */
  readonly nodeLocal: boolean;
  /**
   * Staging creates something that is not in the mount table and can outlive the mount, such as a loop device. Core keeps the record of a
   * mount until `unstage` succeeds, and calls `unstage` again before it renames or deletes the volume or forgets the mount.
   */
  readonly outlivesMount: boolean;
  /** For further mounts of a staged volume, core uses the recorded source without asking the store. */
  readonly sourceFixedWhileStaged: boolean;
  /** Throws for a source that no process could stage, whatever its privileges. */
  validate?(source: SourceOf<K>): void;
  /**
   * Idempotent: returns success if already done. Also completes an expansion that could not happen while the volume was unmounted.
   */
  stage(source: SourceOf<K>, target: StagingTarget, scope: Scope, options?: StageOptions): Promise<void>;
  /** Succeeds if not staged. With `force`, programs that use the volume get errors, and the call waits for no server. */
  unstage(source: SourceOf<K>, target: StagingTarget, scope: Scope, options?: UnstageOptions): Promise<void>;
  /** Every path on this node where the source, or a part of it, is mounted, by any program, including hidden mounts. */
  mountsOf(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<readonly string[]>;
  /** Completes the expansion of a staged volume on the node. Present if that is needed. */
  grow?(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<void>;
  /** Writes cached data to the server. Throws if that takes longer than some seconds. Present if the client has a write cache. */
  flush?(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<void>;
  /**
   * True if a mount of the volume is still served in another mount namespace, such as a container's. Waits a moment for a mount that
   * was just unmounted. Present if the client can tell.
   */
  isServedElsewhere?(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<boolean>;
  /**
   * The paths of dead mounts, which the kernel still shows. Never accesses them. Throws if it cannot tell. Present if mounts can
   * die.
   */
  findDeadMounts?(
    staged: readonly { readonly source: SourceOf<K>; readonly target: StagingTarget }[],
    scope: Scope,
  ): Promise<readonly string[]>;
  /** Present if one of our processes serves the mounts. */
  readonly daemon?: {
    /** Sources with equal keys are served by the same process, so core calls `findProblem` once for them. */
    key(source: SourceOf<K>, target: StagingTarget): string;
    /** The problem of the process. Undefined: it is healthy. */
    findProblem(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<string | undefined>;
  };
  /** Pure functions. Present if all mounts of a volume on a node share the options of the first one. */
  readonly sharing?: {
    /** The source for another mount. Logs options that differ; throws 'conflict' if sharing would break a guarantee. */
    sharedSource(
      volume: Pick<Volume, 'store' | 'name'>,
      wanted: SourceOf<K>,
      staged: SourceOf<K>,
      log: Log,
    ): SourceOf<K>;
    /** The source for remounting a dead mount: the same options, at the store's current address. */
    remountSource(staged: SourceOf<K>, now: SourceOf<K>): SourceOf<K>;
    /** The group that the volume is mounted for. Core remounts an idle volume for another group. */
    groupOf(source: SourceOf<K>): number | undefined;
  };
  /** The source to record and stage for this use. The same use always gives an equal source. */
  withMountOptions?(source: SourceOf<K>, use: MountUse): SourceOf<K>;
  /** Present if volumes have their own file systems. Returns undefined for a raw block device. */
  filesystemOf?(source: SourceOf<K>): string | undefined;
  /** True if all users have the same rights on the files, so that it does not matter which user a container runs as. Absent: false. */
  isSingleUser?(source: SourceOf<K>): boolean;
}

export interface MountUse {
  readonly readOnly: boolean;
  /** The members of this group must be able to use the volume. */
  readonly group: number | undefined;
}

export interface StageOptions {
  /** Do not check that the server answers; programs that use the volume wait for it. */
  readonly skipServerCheck: boolean;
}

export interface UnstageOptions {
  readonly force: boolean;
}

export interface MountPoint {
  readonly at: string;
  /** Device and root are the same for every bind mount of the same directory. */
  readonly device: string;
  readonly root: string;
  readonly source: string;
  readonly type: string;
  readonly readOnly: boolean;
}

export interface Mounter {
  /** Why this process cannot mount, and what to do. Undefined: it can. */
  readonly unable: { readonly why: string; readonly action: string } | undefined;
  /**
   * Idempotent. Bind-mounts a file onto a file, or a directory onto a directory, always nosuid and nodev. Throws 'conflict' if something
   * else is mounted there, or if the target leads elsewhere through a symbolic link by now. Pass targets as `inspectTarget` returned them.
   */
  bind(source: string, target: string, options: { readonly readOnly: boolean }, scope: Scope): Promise<void>;
  /** Succeeds if nothing is mounted there. Throws 'in-use' if the mount is in use. */
  unmount(target: string, scope: Scope): Promise<void>;
  /**
   * Detaches lazily (MNT_DETACH), even if in use; open files keep working. `abort`: the file system behind it returns errors from
   * then on, if it supports that. Succeeds if nothing is mounted there.
   */
  detach(target: string, scope: Scope, options?: { readonly abort: boolean }): Promise<void>;
  /**
   * Mounts a tmpfs with shared propagation at the folder. A container engine that does not see this machine's mounts then finds nothing
   * where a volume should be, instead of an empty directory to write into. Idempotent: returns success if already done.
   */
  openShared(folder: string, scope: Scope): Promise<void>;
  /** Removes the tmpfs, unless something is mounted in it. */
  closeShared(folder: string, scope: Scope): Promise<void>;
  list(scope: Scope): Promise<readonly MountPoint[]>;
  /** For staging paths: cheap if the path does not exist. */
  isMounted(path: string, scope: Scope): Promise<boolean>;
  /** Rejects a target that would hide data or is not for mounting. Returns the path with symbolic links resolved. Creates nothing. */
  inspectTarget(
    target: string,
    access: Access,
    scope: Scope,
  ): Promise<{ readonly target: string; readonly existed: boolean }>;
  /**
   * The path as in the mount table, with symbolic links resolved. Never accesses the mount at the path, which may be dead. Undefined: a
   * parent directory is missing.
   */
  resolvePath(path: string, scope: Scope): Promise<string | undefined>;
  /** Returns success if the target exists. */
  makeTarget(target: string, access: Access, scope: Scope): Promise<void>;
  /** Removes the target only if it is empty and nothing is mounted there. Succeeds if it does not exist. */
  removeTarget(target: string, scope: Scope): Promise<void>;
  /**
   * Releases staged mounts under `mountsFolder` and loop devices on images of stores if no volume in `known` needs them. Returns their
   * paths.
   */
  reap(mountsFolder: string, known: ReadonlySet<VolumeId>, scope: Scope): Promise<readonly string[]>;
}

/**
 * The persistent state of this machine. Synchronous, except `groupCommit`: the file is local and each call takes microseconds.
 * Commits survive kill -9. Commits that a power cut loses can be restored from the stores, which sync themselves.
 */
export interface Records extends ContainerRecords {
  transaction<T>(work: () => T): T;
  /**
   * Like `transaction`, but commits together with other writes of this turn of the event loop: in a burst, commits cost more than the
   * writes. Each `work` succeeds or fails by itself.
   */
  groupCommit(work: () => void): Promise<void>;
  readonly settings: {
    get(key: string): string | undefined;
    set(key: string, value: string): void;
  };
  readonly stores: {
    list(): readonly { readonly name: string; readonly uri: string }[];
    put(name: StoreName, uri: string): void;
    remove(name: StoreName): void;
  };
  readonly volumes: {
    put(volume: Volume): void;
    remove(id: VolumeId): void;
    byId(id: VolumeId): Volume | undefined;
    byName(store: StoreName, name: VolumeName): Volume | undefined;
    /** The volume that the request created, even if it was renamed since. */
    byRequest(store: StoreName, requestId: string): Volume | undefined;
    /** The volumes with this name, in all stores. */
    allByName(name: VolumeName): readonly Volume[];
    page(query: VolumeQuery): readonly Volume[];
    names(store: StoreName): readonly { readonly id: VolumeId; readonly name: VolumeName }[];
    totals(store: StoreName): VolumeTotals;
    /** Removes the records of a store that was removed from the configuration. Its volumes stay on the store. */
    forgetStore(store: StoreName): void;
  };
  readonly operations: {
    begin(operation: Operation): void;
    end(id: OperationId, state: Exclude<OperationState, 'running'>, endedAt: number, error: Operation['error']): void;
    listUnfinished(): readonly Operation[];
    get(id: OperationId): Operation | undefined;
    /** Newest first. */
    page(query: OperationQuery): Page<Operation>;
    /** Deletes ended operations, except the newest `keep`. */
    prune(keep: number): void;
  };
  readonly mounts: {
    put(mount: Mount): void;
    remove(target: string): void;
    byTarget(target: string): Mount | undefined;
    byVolume(volume: VolumeId): readonly Mount[];
    list(): readonly Mount[];
  };
  readonly tokens: {
    put(token: Token, hash: string): void;
    byHash(hash: string): Token | undefined;
    list(): readonly Token[];
    remove(id: string): boolean;
  };
  readonly idempotentResponses: {
    get(key: string): StoredResponse | undefined;
    put(key: string, answer: StoredResponse): void;
    /** Idempotency keys are kept for a day. */
    prune(olderThan: number): void;
  };
  close(): void;
}

/** The number of volumes on a store, and the sum of their sizes. */
export interface VolumeTotals {
  readonly volumes: number;
  readonly bytes: bigint;
}

export interface StoredResponse {
  readonly fingerprint: string;
  /** Undefined: the first request with this key is still running, or was running when the process died. */
  readonly status: number | undefined;
  readonly body: string;
  readonly at: number;
}

export interface OperationQuery {
  /** Undefined: all operations, including those that concern no store. Empty: none. */
  readonly stores?: readonly string[] | undefined;
  /** `next` of the previous page. */
  readonly after?: number | undefined;
  readonly limit: number;
}

export interface Page<T> {
  readonly items: readonly T[];
  /** Undefined: this is the last page. */
  readonly next: number | undefined;
}

export interface VolumeQuery {
  /** Empty: none, so that an empty scope cannot list everything. */
  readonly stores: readonly StoreName[];
  readonly labels: Labels;
  /** Only volumes whose names contain this. */
  readonly contains: string | undefined;
  /** The last volume of the previous page. */
  readonly after: { readonly store: string; readonly name: string } | undefined;
  readonly limit: number;
}
