import type { StowageError } from '#core/errors.ts';
import type { Room, SeenUse, StoreName, VolumeId } from '#core/model.ts';
import type { StoreContext } from '#core/ports.ts';
import type { CallSlots } from './call-slots.ts';
import type { Files } from './files.ts';
import type { Meta } from './meta.ts';

/** The store's directory, found and checked. */
export interface StoreRoot {
  readonly store: StoreName;
  readonly context: StoreContext;
  readonly files: Files;
  /** As people know it; every path here begins with it. */
  readonly root: string;
  /** The same for every Stowage that reads the store: what ids of volumes without a record are made from. */
  readonly baseUri: string;
  /** As its own record says. Undefined: there is none, or not for this user. */
  readonly identity: string | undefined;
  /** `<root>/.stowage/<part>` */
  ownPath(...parts: readonly string[]): string;
  metaPath(name: string): string;
  /** A path in `.stowage/tmp` that nobody else uses. */
  scratchPath(): string;
  /** Left by an earlier run of this instance. */
  isLeftover(scratchName: string): boolean;
  /** Throws when the directory is gone, or is another one: deleted and made again, or its disk not mounted. */
  verify(): Promise<void>;
  readonly callSlots: CallSlots;
  /** Makes every change of the root directory so far durable. For short calls: they lend their place meanwhile. */
  sync(): Promise<void>;
  /** Replaces a record atomically and durably. `sure` is called at the last moment, and may throw. */
  replaceRecord(path: string, meta: Meta, sure?: () => void): Promise<void>;
  readonly reserve: Reserve;
  /** What its file system has for the user that this process is to it. */
  room(signal?: AbortSignal): Promise<Room>;
  /**
   * The time in ms by the clock of the server that has the files. Its answer is undefined where the server does not say.
   * Absent: this machine has them.
   */
  serverTime?(): Promise<number | undefined>;
  /** Undefined: the store is locked, nobody else works on it. */
  readonly hostLocks: HostLocks | undefined;
  /** What was thrown, for people. `doing` completes "… failed". May take a moment to find out why. */
  failure(cause: unknown, doing: string): StowageError | Promise<StowageError>;
  close(): Promise<void>;
}

/** Room kept back, so that a full store can still be emptied: moving a volume to the trash takes a block or two. */
export interface Reserve {
  /** Repeats what found no room, giving up a piece each time. So it must be work that can be repeated. */
  retryWithReserve<T>(work: () => Promise<T>): Promise<T>;
  /** Makes the pieces that are missing, where there is room enough. */
  refill(): Promise<void>;
}

/**
 * A host that has not moved for so long can be taken for dead by others. One that lives must therefore not go on with
 * anything after half of it, but give up and begin anew: see `Limit`.
 */
export const presumedDeadMs = 60_000;

/** Volumes that this host holds, until it disposes of this. */
export interface Hold extends AsyncDisposable {
  /** By this process's monotonic clock: just before it sent the first call that took one of the locks. */
  readonly since: number;
}

/**
 * Other hosts that work on the same store at the same time. A volume that exists is changed only by who holds it; a
 * name is taken by creating its record exclusively, and an empty record belongs to who made it.
 */
export interface HostLocks {
  /** Waits until no other host holds these volumes. */
  hold(ids: readonly VolumeId[], signal: AbortSignal): Promise<Hold>;
  /**
   * For who holds it. 'gone': the volume was destroyed for good, so its lock goes with it. 'not found': perhaps it was, so
   * a lock file that was made for this hold alone goes.
   */
  forget(id: VolumeId, why: 'gone' | 'not found'): void;
  /**
   * 'another': by another host, or by one that died. 'stale': the lock has not changed for two minutes, in which this was called before.
   * Whoever holds the volume then watches the lock for some seconds more, and takes it over.
   */
  holderOf(id: VolumeId): Promise<'nobody' | 'another' | 'stale'>;
  /** An empty record, made exclusively (`EEXIST`): only who made it replaces it. */
  takeName(path: string): Promise<void>;
  /**
   * Of an empty or cut-off record on which nobody works any more: an earlier one of ours, or one that has not changed
   * for long, while we looked now and then. It is empty and ours from then on, as if just taken. `isTorn` is asked last.
   */
  takeOverName(path: string, isTorn: () => Promise<boolean>): Promise<boolean>;
  /** Which of them, and of this one, use a volume. For who holds it: none of them begins to meanwhile. */
  usesOf(id: VolumeId): Promise<readonly SeenUse[]>;
}
