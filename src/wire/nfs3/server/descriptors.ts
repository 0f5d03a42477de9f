import { closeSync } from 'node:fs';

/** An open descriptor that somebody keeps for later. */
export interface Descriptor {
  readonly fd: number;
  /** What lies in it, if it is a directory: `/proc/self/fd/<fd>/`. The kernel follows that to the directory itself. */
  readonly prefix: string;
  /** Calls that wait for something done with it: it is not closed under them. */
  users: number;
}

/**
 * Descriptors that are kept open, at most `limit`. Whoever keeps one is told when it is closed. None is closed that was
 * used in the turn that is running: a call may hold two at a time, and a number that is closed is given out again.
 */
export interface Descriptors {
  keep(fd: number, onClosed: () => void): Descriptor;
  /** It is being used. */
  touch(descriptor: Descriptor): void;
  /** Closes it now, or when the last of its users is done. */
  drop(descriptor: Descriptor): void;
  release(descriptor: Descriptor): void;
  /** Another turn begins. */
  startTurn(): void;
  /** Closes all that nobody waits for. */
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

  /** Second chance: those used since they were last looked at go to the end. */
  function evict(): void {
    for (let looks = all.size * 2; all.size >= limit && looks > 0; looks--) {
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
    keep: (fd, onClosed) => {
      evict();
      const prefix = `/proc/self/fd/${fd}/`;
      const kept: KeptDescriptor = { fd, prefix, users: 0, turn, isRecent: false, isDropped: false, onClosed };
      all.add(kept);
      return kept;
    },
    touch: (descriptor) => {
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

/** What could not be written is told to who asks for it to be saved; nobody waits for a close. */
function close(fd: number): void {
  try {
    closeSync(fd);
  } catch {
    // It is closed all the same.
  }
}
