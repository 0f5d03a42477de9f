import type { StowageError } from '#core/errors.ts';
import type { Room, SeenUse, StoreName, VolumeId } from '#core/model.ts';
import type { StoreContext } from '#core/ports.ts';
import type { CallSlots } from './call-slots.ts';
import type { Files } from './files.ts';
import type { Meta } from './meta.ts';

/** The opened directory of a store. */
export interface StoreRoot {
  readonly store: StoreName;
  readonly context: StoreContext;
  readonly files: Files;
  /** The path as users write it. Every path in this interface begins with it. */
  readonly root: string;
  /** The same for every Stowage that reads the store. Ids of volumes without a record are derived from it. */
  readonly baseUri: string;
  /** The id in `.stowage/store.json`. Undefined: there is none, or this user may not read it. */
  readonly identity: string | undefined;
  /** `<root>/.stowage/<part>` */
  ownPath(...parts: readonly string[]): string;
  metaPath(name: string): string;
  /** A new, unique path in `.stowage/tmp`. */
  scratchPath(): string;
  /** Whether an earlier run, or a host that is presumed dead, left this file in `.stowage/tmp`. */
  isLeftover(scratchName: string): boolean;
  /** Throws if the directory is gone or is another one: recreated, or the mount point of an unmounted disk. */
  verify(): Promise<void>;
  readonly callSlots: CallSlots;
  /** Makes all previous changes of the root directory durable. For short calls: they release their slot in the meantime. */
  sync(): Promise<void>;
  /** Replaces a record atomically and durably. Calls `check` right before the rename; it may throw. */
  replaceRecord(path: string, meta: Meta, check?: () => void): Promise<void>;
  readonly reserve: Reserve;
  /** Size and free space of the file system, for the user as which this process accesses it. */
  room(signal?: AbortSignal): Promise<Room>;
  /**
   * The time in ms by the clock of the server that has the files. Returns undefined if the server does not tell.
   * Absent: this machine has the files.
   */
  serverTime?(): Promise<number | undefined>;
  /** Undefined: this process has the whole store locked, or the store is read-only. */
  readonly hostLocks: HostLocks | undefined;
  /** Turns an error into one for users. `doing` completes "… failed". May take a moment to find out the reason. */
  failure(cause: unknown, doing: string): StowageError | Promise<StowageError>;
  close(): Promise<void>;
}

/** Space kept in reserve, so that volumes can be deleted from a full store: moving one to the trash takes a block or two. */
export interface Reserve {
  /** Retries `work` when the store is full, and removes a piece of the reserve each time. So `work` must be repeatable. */
  retryWithReserve<T>(work: () => Promise<T>): Promise<T>;
  /** Recreates missing pieces if there is enough space. */
  refill(): Promise<void>;
}

/**
 * Other hosts may presume a host dead that has done nothing for this long. So a live host must stop an operation after half of this time,
 * and start over: see `HoldLimit`.
 */
export const presumedDeadMs = 60_000;

/** Locks on volumes, held until disposed. */
export interface Hold extends AsyncDisposable {
  /** By the monotonic clock of this process, right before it sent the first call that took one of the locks. */
  readonly since: number;
}

/**
 * Locks against other hosts that work on the same store. A host changes an existing volume only while it holds the volume's lock. A host
 * takes a name by creating its record exclusively; an empty record belongs to the host that created it.
 */
export interface HostLocks {
  /** Waits until it has locked these volumes. */
  hold(ids: readonly VolumeId[], signal: AbortSignal): Promise<Hold>;
  /**
   * Call it with the volume locked. 'gone': the volume was destroyed, so the release removes its lock file. 'not found': perhaps it
   * was, so the release removes the lock file only if this hold created it.
   */
  forget(id: VolumeId, why: 'gone' | 'not found'): void;
  /**
   * 'another': another host holds it, or one that died. 'stale': the lock has not changed for two minutes, in which this was called
   * before. `hold` then watches the lock for some seconds more, and takes it over.
   */
  holderOf(id: VolumeId): Promise<'nobody' | 'another' | 'stale'>;
  /** Creates an empty record exclusively (`EEXIST`). Only the host that created it replaces it. */
  takeName(path: string): Promise<void>;
  /**
   * Takes over an empty or truncated record that no host works on: an earlier one of ours, or one that has not changed for long
   * while we polled it. After that it is empty and ours, as after `takeName`. Calls `isTorn` last.
   */
  takeOverName(path: string, isTorn: () => Promise<boolean>): Promise<boolean>;
  /** The hosts, including this one, that use a volume. Call it with the volume locked, so that no host begins to use it. */
  usesOf(id: VolumeId): Promise<readonly SeenUse[]>;
}
