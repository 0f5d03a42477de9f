import { closeSync } from 'node:fs';

/** An open descriptor that is kept for later calls. */
export interface Descriptor {
  readonly fd: number;
  /**
   * The path prefix of its entries, if it is a directory: `/proc/self/fd/<fd>/`. The kernel resolves it to the open directory
   * itself.
   */
  readonly prefix: string;
  /** The number of calls that use it asynchronously. It is not closed before they are done. */
  users: number;
}

/**
 * Keeps at most `limit` descriptors open. The owner of a descriptor is notified when it is closed. Descriptors that were used in
 * the current turn are not closed: a call may use two at the same time, and the kernel reuses closed descriptor numbers.
 */
export interface Descriptors {
  add(fd: number, onClosed: () => void): Descriptor;
  /** Marks the descriptor as used in this turn. */
  markUsed(descriptor: Descriptor): void;
  /** Closes the descriptor now, or when its last user is done. */
  drop(descriptor: Descriptor): void;
  release(descriptor: Descriptor): void;
  /** Starts a new turn. */
  startTurn(): void;
  /** Closes all descriptors without users. */
  closeAll(): void;
  readonly size: number;
}

interface KeptDescriptor extends Descriptor {
  turn: number;
  isRecent: boolean;
  isDropped: boolean;
  readonly onClosed: () => void;
}

export function createDescriptors(limit: number): Descriptors {
  const all = new Set<KeptDescriptor>();
  let turn = 0;

  function drop(kept: KeptDescriptor): void {
    if (kept.isDropped) return;
    kept.isDropped = true;
    all.delete(kept);
    kept.onClosed();
    if (kept.users === 0) close(kept.fd);
  }

  /** Second-chance eviction: descriptors that were used since the last check move to the end. */
  function evict(): void {
    for (let checksLeft = all.size * 2; all.size >= limit && checksLeft > 0; checksLeft--) {
      const [oldest] = all;
      if (oldest === undefined) return;
      if (oldest.isRecent || oldest.users > 0 || oldest.turn === turn) {
        oldest.isRecent = false;
        all.delete(oldest);
        all.add(oldest);
      } else drop(oldest);
    }
  }

  return {
    add: (fd, onClosed) => {
      evict();
      const prefix = `/proc/self/fd/${fd}/`;
      const kept: KeptDescriptor = { fd, prefix, users: 0, turn, isRecent: false, isDropped: false, onClosed };
      all.add(kept);
      return kept;
    },
    markUsed: (descriptor) => {
      const kept = descriptor as KeptDescriptor;
      kept.turn = turn;
      kept.isRecent = true;
    },
    drop: (descriptor) => drop(descriptor as KeptDescriptor),
    release: (descriptor) => {
      const kept = descriptor as KeptDescriptor;
      kept.users--;
      if (kept.users === 0 && kept.isDropped) close(kept.fd);
    },
    startTurn: () => {
      turn++;
    },
    closeAll: () => {
      for (const kept of all) if (kept.users === 0) drop(kept);
    },
    get size() {
      return all.size;
    },
  };
}

/** Sync calls report write errors; no call waits for a close. */
function close(fd: number): void {
  try {
    closeSync(fd);
  } catch {
    // The descriptor is closed even if close(2) fails.
  }
}
