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
 * A place volumes come from. Every call may be repeated, also after a crash in the middle of the first one; a second
 * call answers as the first did. Errors are StowageErrors. Optional members are facets: a facet that is present IS the capability, and
 * core/store-facets.ts has the errors for those that are missing.
 */
export interface Store {
  readonly name: StoreName;
  readonly access: readonly Access[];
  /** The source kinds that `source()` can return. */
  readonly sources: readonly SourceKind[];
  /** Same request id and parameters: the same volume. Same name otherwise: 'exists'. A failure leaves nothing behind. */
  create(want: VolumeSpec, scope: Scope): Promise<Volume>;
  /** By name, from the store itself. Undefined: no such volume (said only when the store answered). */
  get(name: VolumeName, scope: Scope): Promise<Inspection | undefined>;
  /** All volumes the store records, in no particular order. Unreadable records are left out (see orphans). */
  list(scope: Scope): AsyncIterable<Volume>;
  /** Destroys data and record. Absent is success; another volume's id under that name is left alone, and success. */
  delete(volume: VolumeRef, scope: Scope, how?: DeletionMode): Promise<void>;
  label(volume: VolumeRef, labels: Labels, scope: Scope): Promise<Volume>;
  source(volume: VolumeRef, scope: Scope): Promise<Source>;
  check(scope: Scope): Promise<StoreCheck>;
  close(): Promise<void>;

  /**
   * What the place says it is, the same for as long as the store lives. Absent: it has no such record, so core does not notice
   * that another store lies there.
   */
  readonly identity?: string | undefined;
  /** Present where one place can have several names: what a directory below this store's says that it is, if a store. */
  identityBelow?(path: string): Promise<string | undefined>;
  /** Present where names are cheaper to list than volumes. Also gives the names of records that cannot be read. */
  names?(scope: Scope): Promise<readonly VolumeName[]>;
  /** Present where others can add, change and remove volumes. A listing asks the store first. */
  readonly changedByOthers?: ChangedByOthers;
  /** Present where volumes are, or can be, held to their sizes. Absent: a size is a label. */
  readonly enforcement?: Enforcement;
  /** Present where volumes have file systems of their own: which one a new volume of that size gets. */
  filesystemFor?(bytes: bigint): string;
  /** Present where a server can fall silent: ends when it has given a sign of life, and throws when it does not. */
  ping?(scope: Scope): Promise<void>;
  /** Absent: 'unsupported'. Never shrinks ('out-of-range'); already that size is success. The client grows the file system. */
  expand?(volume: VolumeRef, bytes: bigint, scope: Scope): Promise<Volume>;
  /**
   * Absent: 'unsupported'. Already so is success; 'not-found' when neither name holds that id; 'exists' when the new name is
   * taken.
   */
  rename?(volume: VolumeRef, to: VolumeName, scope: Scope): Promise<Volume>;
  /** The volume's own figures, not the file system's around it. Absent: core reports those of the mount, or none. */
  usage?(volume: VolumeRef, scope: Scope): Promise<Usage>;
  /** One call to the disk or server, unlike `check`. Absent: the free space is unknown. */
  room?(scope: Scope): Promise<Room>;
  /** Present where what can be mounted for writing may yet be of no use to anybody: throws why. */
  usable?(source: Source, scope: Scope): Promise<void>;
  /**
   * Present where what is in a volume cannot be counted: that somebody is given it is on record when this returns, over a power
   * cut too, so that it is not taken for empty from then on. Before every mount. Already so is success.
   */
  noteUse?(volume: VolumeRef, scope: Scope): Promise<void>;
  /**
   * Present where a group can use a volume only if its files are the group's on the store: gives it all of them. Already so, by
   * what the top directory says, is success, and costs one look. What is interrupted is gone on with by the next call.
   */
  chownToGroup?(source: Source, group: number, scope: Scope): Promise<void>;
  /** Present where the store can keep deleted volumes for a while. Absent: onDelete=archive is refused. */
  readonly trash?: Trash;
  /**
   * Present where the store can forget a volume without touching its data, and make existing data a volume. Absent: onDelete=retain
   * is refused.
   */
  readonly adoption?: AdoptionFacet;
  /** Present where a crash can leave something half done on the store, or something can lie there that belongs to no volume. */
  readonly housekeeping?: Housekeeping;
  /** Present where other hosts can use the store's volumes: who does, by records on the store itself. */
  readonly uses?: Uses;
}

export interface ChangedByOthers {
  /**
   * The names that `names` gives, each with a mark that differs after a change. Absent: a listing sees
   * which names came and went, but no changes of volumes that are on record.
   */
  marks?(scope: Scope): Promise<ReadonlyMap<VolumeName, string>>;
}

export interface Enforcement {
  /** The store holds every volume to its size, so `create` needs one. */
  readonly always: boolean;
  /** Holds the volume to its size from now on. Idempotent: returns success if already done. Absent: the store is read-only. */
  enforce?(volume: VolumeRef, scope: Scope): Promise<Volume>;
}

export interface DeletionMode {
  /**
   * The step that removes the data must itself fail when there are any ('conflict', reason 'volume-not-empty'): a check
   * before it would be too early. Volumes whose content can't be counted must never have been mounted. A refused deletion
   * changes nothing. Data that are missing count as empty, so that an interrupted deletion can be completed. A store that cannot tell
   * whether a volume is empty refuses.
   */
  readonly onlyIfEmpty?: boolean;
}

export interface AdoptionFacet {
  /** Existing data without a record that could become volumes, and those that cannot with the reason. */
  adoptable(scope: Scope): Promise<readonly Adoptable[]>;
  /** Records existing data as a volume, without copying. A released volume comes back under its old id. */
  adopt(name: VolumeName, spec: VolumeSpec, scope: Scope): Promise<Volume>;
  /** Makes a volume recorded by another instance this instance's own. */
  claim(volume: VolumeRef, instance: string, scope: Scope): Promise<Volume>;
  /** Forgets the volume and leaves its data where they are; `adopt` takes them in again under the same id. */
  release(volume: VolumeRef, scope: Scope): Promise<void>;
}

export interface Housekeeping {
  /**
   * Finishes what a crash left half done, from what lies on the store alone: interrupted creations, renames, deletions,
   * moves to and from the trash. Called once after opening, when the recorded operations have been replayed, and before
   * anybody else may use the store. Touches only what this instance made.
   */
  sweep(scope: Scope): Promise<void>;
  orphans(scope: Scope): Promise<readonly Orphan[]>;
  /**
   * Present where the space of deleted volumes is freed after their deletion. Safe at any time; stops at the signal and continues
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
   * Absent or already in the trash is success. Gives until when the trash keeps the volume: for `retention`, by the clock of
   * the server that has the files. Undefined: that is not known yet.
   */
  put(
    volume: VolumeRef,
    how: { readonly deletedAt: number; readonly retention: number },
    scope: Scope,
  ): Promise<number | undefined>;
  list(scope: Scope): Promise<readonly TrashEntry[]>;
  /** Already restored under that name is success. */
  restore(id: VolumeId, name: VolumeName, scope: Scope): Promise<Volume>;
  /** At once. Absent is success. Only: if the entry is still of that deletion, and not of a later one. */
  purge(id: VolumeId, scope: Scope, only?: { readonly deletedAt: number }): Promise<void>;
  /**
   * The entries that this host may purge by now. Keeps count of the time in which it saw them, so call it regularly.
   * `retention` is for entries without a date, which an older Stowage left.
   */
  expired(retention: number, scope: Scope): Promise<readonly TrashEntry[]>;
  /** Decides again with the volume locked. False: it is not, or no longer, one that this host may purge. */
  purgeExpired(id: VolumeId, scope: Scope): Promise<boolean>;
}

/**
 * Which hosts use a volume. A record goes stale when its host is silent; stale still refuses, until a person breaks it.
 * A volume that has one is not deleted, released, put into the trash or renamed by any host ('in-use'): the store sees
 * to it, since nobody else can keep a host from beginning at that moment.
 */
export interface Uses {
  /** Made or renewed; with the time of the store's own clock. 'not-found' when the volume is not there, or in the trash. */
  put(volume: VolumeRef, use: Use, scope: Scope): Promise<void>;
  /** Of a host that stopped using it, or is said to be gone; it no longer is the writer either. Absent is success. */
  remove(volume: VolumeId, host: string, scope: Scope): Promise<void>;
  /** The writer too, whatever it recorded. */
  list(volume: VolumeId, scope: Scope): Promise<readonly SeenUse[]>;
  /** For who alone may write. Already ours is success; another's is 'in-use', also a stale one's. 'not-found' as for `put`. */
  takeWriter(volume: VolumeRef, host: string, scope: Scope): Promise<void>;
  /** Another's is left alone. */
  dropWriter(volume: VolumeId, host: string, scope: Scope): Promise<void>;
}

/** Knows a scheme of store URIs. */
export interface StoreKind {
  readonly scheme: string;
  readonly placement: Placement;
  /** Present where volumes lie in a directory of this machine. Undefined for a URI that cannot be parsed. */
  localDirectory?(config: StoreConfig): LocalDirectory | undefined;
  /** The client's name in what users see (`bind`, `loop`, …). Known while the store is closed. */
  clientName(config: StoreConfig): string;
  /** The kind's own option names, for the error that lists what is allowed, with one line of help each. */
  readonly options: Readonly<Record<string, string>>;
  /** Throws a StowageError for options, or a place, that can never be right. */
  refuse?(config: StoreConfig): void;
  /** Opens and locks it. Throws a StowageError that says what is wrong with the place or the options. */
  open(config: StoreConfig, policy: StorePolicy, context: StoreContext, scope: Scope): Promise<Store>;
  /**
   * Checks the way to a store that cannot be opened, step by step. Absent: that is all there is to say. From: where it is to
   * start, instead of where the store's own traffic does.
   */
  probe?(config: StoreConfig, policy: StorePolicy, scope: Scope, from?: string): Promise<StoreCheck>;
}

export interface LocalDirectory {
  readonly path: string;
  /** It holds images, which loop devices are attached to. */
  readonly hasImages: boolean;
}

export interface StoreContext {
  readonly instance: string;
  readonly node: NodeName;
  /** The store's identity when it was last open: a place that has another one, or none, is refused. Undefined: never seen. */
  readonly identity?: string | undefined;
  /** Undefined: a process that nobody knows of, after another that may be alive. */
  readonly marks?: ProcessMarks | undefined;
}

/** Tells the processes that work on one shared store apart, also those of one instance. */
export interface ProcessMarks {
  /** Random, of this process alone. From 2 to 2^29 - 1. */
  readonly own: number;
  /** Of processes before this one that are certainly dead: what they held is ours at once. */
  readonly dead: readonly number[];
}

/** Where a volume is staged: one mount per volume and node. */
export interface StagingTarget {
  readonly volumeId: VolumeId;
  /** `<mounts folder>/<volume id>` */
  readonly path: string;
}

/** Makes one kind of source a mount on this node. It outlives the process, so it is two calls, not a disposable. */
export interface Client<K extends SourceKind = SourceKind> {
  readonly kind: K;
  /** The data are on this node: no other host can use them, and no store has use records of them. */
  readonly nodeLocal: boolean;
  /**
   * Staging sets up something that the mount table does not show and that can stay when the mount is gone, such as a loop device.
   * Core keeps the record of a mount until `unstage` has succeeded, and calls `unstage` again before it renames or deletes the
   * volume or forgets the mount.
   */
  readonly outlivesMount: boolean;
  /** Core uses the recorded source for further mounts of a staged volume, and does not ask the store. */
  readonly sourceFixedWhileStaged: boolean;
  /** Throws for a source that cannot be staged whatever this process may do. */
  refuse?(source: SourceOf<K>): void;
  /**
   * Already so is success. Also completes a growth that could not happen while unmounted. Unanswered: without making sure
   * that its server answers; who uses it waits.
   */
  stage(source: SourceOf<K>, target: StagingTarget, scope: Scope, how?: StageOptions): Promise<void>;
  /** Not staged is success. Forced: whoever uses it gets errors from then on, and no server is waited for. */
  unstage(source: SourceOf<K>, target: StagingTarget, scope: Scope, how?: UnstageOptions): Promise<void>;
  /** Every path of this node where the source, or a part of it, is mounted: ours and others', hidden ones too. */
  mountsOf(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<readonly string[]>;
  /** Present where the node must do something after the store enlarged a volume that is staged. */
  grow?(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<void>;
  /** Present where what was written may lie in memory of ours: throws when the server does not take it within seconds. */
  flush?(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<void>;
  /**
   * Present where it can be known: whether something of the volume is still served that is mounted nowhere here, such as in
   * the mount namespace of a container. What has just been unmounted is given a moment to end.
   */
  elsewhere?(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<boolean>;
  /**
   * Present where a mount can die while the kernel still shows it: the paths of those that have. Never looks into them, and
   * throws where that cannot be known.
   */
  dead?(
    staged: readonly { readonly source: SourceOf<K>; readonly target: StagingTarget }[],
    scope: Scope,
  ): Promise<readonly string[]>;
  /** Present where a process of ours serves the mounts. */
  readonly daemon?: {
    /** Sources with equal keys are served by the same process. Core asks for its trouble once. */
    key(source: SourceOf<K>, target: StagingTarget): string;
    /** What is wrong with the process. Undefined: nothing. */
    trouble(source: SourceOf<K>, target: StagingTarget, scope: Scope): Promise<string | undefined>;
  };
  /** Present where all mounts of a volume on a node share the options of the first one. Pure functions. */
  readonly sharing?: {
    /** The source for one more mount. Logs options that differ; throws 'conflict' where sharing would break a promise. */
    join(volume: Pick<Volume, 'store' | 'name'>, wanted: SourceOf<K>, staged: SourceOf<K>, log: Log): SourceOf<K>;
    /** The source that replaces a dead mount: with its options, at the address that the store knows now. */
    replace(staged: SourceOf<K>, now: SourceOf<K>): SourceOf<K>;
    /** The group it is mounted for. Core remounts an idle volume for another group. */
    groupOf(source: SourceOf<K>): number | undefined;
  };
  /** The source as it is recorded and staged for this use. For the same use twice it gives an equal source. */
  withMountOptions?(source: SourceOf<K>, use: MountUse): SourceOf<K>;
  /** Present where volumes have file systems of their own. Undefined: a raw block device. */
  filesystemOf?(source: SourceOf<K>): string | undefined;
  /** Every caller has the same rights on the files, so the user that a container runs as does not matter. Absent: false. */
  isSingleUser?(source: SourceOf<K>): boolean;
}

export interface MountUse {
  readonly readOnly: boolean;
  /** The members of this group must be able to use the volume. */
  readonly group: number | undefined;
}

export interface StageOptions {
  readonly skipServerCheck: boolean;
}

export interface UnstageOptions {
  readonly force: boolean;
}

export interface MountPoint {
  readonly at: string;
  /** What it shows: the same pair for every bind of the same thing. */
  readonly device: string;
  readonly root: string;
  readonly source: string;
  readonly type: string;
  readonly readOnly: boolean;
}

export interface Mounter {
  /** Undefined: it can. Otherwise what is missing and how to get it. */
  readonly unable: { readonly why: string; readonly action: string } | undefined;
  /**
   * Already so: nothing; something else there: 'conflict'. A file is bound onto a file, a directory, always nosuid and
   * nodev, onto a directory. `at` and every other target is as `inspectTarget` gave it; one that leads elsewhere by
   * now, through a symbolic link, is 'conflict'.
   */
  bind(from: string, at: string, how: { readonly readOnly: boolean }, scope: Scope): Promise<void>;
  /** Not mounted is success; in use is 'in-use'. */
  unmount(at: string, scope: Scope): Promise<void>;
  /**
   * Takes it out of sight, in use or not; who uses it still does. Abort: the file system behind it gives everybody errors
   * from then on, where it is one that can. Not mounted is success.
   */
  detach(at: string, scope: Scope, how?: { readonly abort: boolean }): Promise<void>;
  /**
   * Makes of the folder one that is in memory, and that whoever sees this machine's mounts sees too: a container engine that
   * does not, finds nothing where a volume should be, instead of an empty folder to write into. Already so is success.
   */
  openShared(folder: string, scope: Scope): Promise<void>;
  /** Takes it away, unless something is mounted in it. */
  closeShared(folder: string, scope: Scope): Promise<void>;
  list(scope: Scope): Promise<readonly MountPoint[]>;
  /** For stages: cheap where there is nothing at all. */
  isMounted(at: string, scope: Scope): Promise<boolean>;
  /** Refuses a target that would hide data or is not for mounting. Gives the path with symbolic links resolved; makes nothing. */
  inspectTarget(
    target: string,
    access: Access,
    scope: Scope,
  ): Promise<{ readonly target: string; readonly existed: boolean }>;
  /**
   * The path as the mount table has it, its symbolic links resolved. What is mounted there is not looked at: whoever serves it may be
   * gone. Undefined: a folder above it is missing.
   */
  resolvePath(path: string, scope: Scope): Promise<string | undefined>;
  /** Already there is success. */
  makeTarget(target: string, access: Access, scope: Scope): Promise<void>;
  /** Only if it is empty and nothing is mounted there; absent is success. */
  removeTarget(target: string, scope: Scope): Promise<void>;
  /** Loop devices and staged mounts under `mountsFolder` or on files under `storeRoots` that no volume in `known` accounts for are let go. */
  reap(mountsFolder: string, known: ReadonlySet<VolumeId>, scope: Scope): Promise<readonly string[]>;
}

/**
 * What must outlive the process on this machine. Synchronous, but for `together`: the file is local and each call takes microseconds.
 * Commits survive kill -9; what a power cut can take back is found again on the stores, which sync for themselves.
 */
export interface Records extends ContainerRecords {
  transaction<T>(work: () => T): T;
  /**
   * The same, in one with whatever else is to be written in this turn of the loop: in a burst of work each commit costs more than
   * what it says. Each is done or not by itself.
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
    /** What that request made, whatever it is called by now. */
    byRequest(store: StoreName, requestId: string): Volume | undefined;
    /** In every store, for a name without one. */
    named(name: VolumeName): readonly Volume[];
    page(query: VolumeQuery): readonly Volume[];
    names(store: StoreName): readonly { readonly id: VolumeId; readonly name: VolumeName }[];
    totals(store: StoreName): VolumeTotals;
    /** The store is gone from the configuration; its volumes live on the store itself. */
    forgetStore(store: StoreName): void;
  };
  readonly operations: {
    begin(operation: Operation): void;
    end(id: OperationId, state: Exclude<OperationState, 'running'>, endedAt: number, error: Operation['error']): void;
    unfinished(): readonly Operation[];
    get(id: OperationId): Operation | undefined;
    /** Newest first. */
    page(query: OperationQuery): Page<Operation>;
    /** Keeps the newest `keep` ended ones. */
    prune(keep: number): void;
  };
  readonly mounts: {
    put(mount: Mount): void;
    remove(target: string): void;
    at(target: string): Mount | undefined;
    of(volume: VolumeId): readonly Mount[];
    list(): readonly Mount[];
  };
  readonly tokens: {
    put(token: Token, hash: string): void;
    byHash(hash: string): Token | undefined;
    list(): readonly Token[];
    remove(id: string): boolean;
  };
  readonly answers: {
    get(key: string): StoredAnswer | undefined;
    put(key: string, answer: StoredAnswer): void;
    /** Idempotency keys live for a day. */
    prune(olderThan: number): void;
  };
  close(): void;
}

/** How many volumes a store has, and the sum of their sizes. */
export interface VolumeTotals {
  readonly volumes: number;
  readonly bytes: bigint;
}

export interface StoredAnswer {
  readonly fingerprint: string;
  /** Undefined while the first request with that key is still running, or was when the process died. */
  readonly status: number | undefined;
  readonly body: string;
  readonly at: number;
}

export interface OperationQuery {
  /** Undefined: everything, also what concerns no store. Empty: none at all. */
  readonly stores?: readonly string[] | undefined;
  /** The `next` of the page before. */
  readonly after?: number | undefined;
  readonly limit: number;
}

export interface Page<T> {
  readonly items: readonly T[];
  /** Undefined: there is nothing more. */
  readonly next: number | undefined;
}

export interface VolumeQuery {
  /** Empty: none at all, so that an empty scope cannot list everything. */
  readonly stores: readonly StoreName[];
  readonly labels: Labels;
  /** Only names that contain this. */
  readonly contains: string | undefined;
  /** The last volume of the page before, as `store/name`. */
  readonly after: { readonly store: string; readonly name: string } | undefined;
  readonly limit: number;
}
