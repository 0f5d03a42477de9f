import type { Clock } from '#base/clock.ts';
import type { Errno } from '#wire/fuse/errno.ts';
import type { Budget } from './budget.ts';
import { createFileWrites, type FileWrites, type WritePattern } from './file-writes.ts';
import type { Piece, Range, SendResult } from './pieces.ts';

export interface WriteBehindParts<F, W> {
  readonly clock: Clock;
  /** The budgets of the process and of this mount. */
  readonly budgets: readonly Budget[];
  /** The cost of that many bytes. */
  readonly cost?: (bytes: number) => number;
  readonly send: (file: F, piece: Piece<W>, options: { readonly stable: boolean }) => Promise<SendResult>;
  readonly commit: (file: F, writer: W) => Promise<{ readonly verifier: bigint }>;
  /** From now on, only `free` may release the data. */
  readonly keep: (place: number) => void;
  readonly free: (place: number) => void;
  /** Data of the file were lost. */
  readonly onLost: (file: F, cause: Errno, lost: readonly Piece<W>[]) => void;
  /** A file's key. */
  readonly keyOf: (file: F) => number;
}

/** Writes that are acknowledged to the application but not on the server's disk yet. */
export interface WriteBehind<F, W> {
  /** Whether that many bytes are accepted without waiting. */
  hasRoom(bytes: number): boolean;
  /** Returns the number of bytes accepted, once there is room. */
  write(file: F, piece: Piece<W>, signal: AbortSignal): number | Promise<number>;
  /** Restores a predecessor's write; call in its order. */
  restore(file: F, piece: Piece<W>): void;
  /**
   * Resolves when the server has answered every write of the file so far (of the range) and its attributes are right.
   * Undefined: there is nothing to wait for.
   */
  waitUntilAnswered(file: F, range?: Range): Promise<void> | undefined;
  /** Resolves when everything written so far is on the server's disk or lost. Undefined: nothing is left. */
  flush(file: F): Promise<void> | undefined;
  /** Like `flush`, for all files. */
  flushAll(): Promise<void>;
  /** The minimum size by unanswered writes. Undefined: all are answered. */
  unansweredEnd(file: F): number | undefined;
  /** Commits early: a writer waits for memory. */
  commitSoon(): void;
  /** The server may have restarted: verify what it has. */
  revalidate(): void;
  /** Number of files with uncommitted data. */
  readonly files: number;
}

export function createWriteBehind<F, W>(parts: WriteBehindParts<F, W>): WriteBehind<F, W> {
  const { clock, budgets, keyOf, cost = (bytes) => bytes } = parts;
  const files = new Map<number, FileWrites<W>>();
  const pattern: WritePattern = { isSingleSmallWrite: false };

  function writesOf(file: F): FileWrites<W> {
    const key = keyOf(file);
    const known = files.get(key);
    if (known !== undefined) return known;
    const made = createFileWrites<W>({
      clock,
      pattern,
      send: (piece, options) => parts.send(file, piece, options),
      commit: (writer) => parts.commit(file, writer),
      free: ({ place, data }) => {
        parts.free(place);
        for (const budget of budgets) budget.release(cost(data.length));
      },
      onLost: (cause, lost) => parts.onLost(file, cause, lost),
      onIdle: () => {
        if (files.get(key) === made) files.delete(key);
      },
    });
    files.set(key, made);
    return made;
  }

  const commitSoon = (): void => {
    for (const fileWrites of files.values()) fileWrites.commitSoon();
  };

  /** Data waiting for the servers of other mounts must not block a mount's first write. */
  const isFirst = (): boolean => budgets.some(({ used }) => used === 0);
  const exhaustedBudget = (amount: number): Budget | undefined =>
    isFirst() ? undefined : budgets.find((budget) => !budget.hasLeft(amount));

  function accept(file: F, piece: Piece<W>): number {
    const { length } = piece.data;
    for (const budget of budgets) budget.take(cost(length));
    parts.keep(piece.place);
    writesOf(file).add(piece, true);
    if (budgets.some((budget) => budget.isHalfUsed)) commitSoon();
    return length;
  }

  async function acceptWhenRoom(file: F, piece: Piece<W>, signal: AbortSignal): Promise<number> {
    for (;;) {
      const budget = exhaustedBudget(cost(piece.data.length));
      if (budget === undefined) return accept(file, piece);
      commitSoon();
      await budget.waitForRelease(signal);
    }
  }

  const hasRoom = (bytes: number): boolean => exhaustedBudget(cost(bytes)) === undefined;

  return {
    hasRoom,
    write: (file, piece, signal) =>
      hasRoom(piece.data.length) ? accept(file, piece) : acceptWhenRoom(file, piece, signal),
    restore: (file, piece) => {
      for (const budget of budgets) budget.take(cost(piece.data.length));
      writesOf(file).add(piece, false);
    },
    waitUntilAnswered: (file, range) => files.get(keyOf(file))?.waitUntilAnswered(range),
    flush: (file) => files.get(keyOf(file))?.flush(),
    flushAll: async () => {
      await Promise.all(files.values().map((fileWrites) => fileWrites.flush()));
    },
    unansweredEnd: (file) => files.get(keyOf(file))?.unansweredEnd(),
    commitSoon,
    revalidate: () => {
      for (const fileWrites of files.values()) fileWrites.revalidate();
    },
    get files() {
      return files.size;
    },
  };
}
