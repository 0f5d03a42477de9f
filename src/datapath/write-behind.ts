import type { Clock } from '#base/clock.ts';
import type { Budget } from './budget.ts';
import { createFileWrites, type FileWrites, type Piece, type Range, type Sent } from './file-writes.ts';

export interface WriteBehindParts<F, W> {
  readonly clock: Clock;
  /** Of all mounts of the process, and of this one. */
  readonly budgets: readonly Budget[];
  readonly send: (file: F, piece: Piece<W>, how: { readonly stable: boolean }) => Promise<Sent>;
  readonly commit: (file: F, who: W) => Promise<{ readonly verifier: bigint }>;
  /** From now on the data may only be given up by `free`. */
  readonly keep: (place: number) => void;
  readonly free: (place: number) => void;
  /** What tells one file from another. */
  readonly keyOf: (file: F) => number;
}

/** Writes that the application has been told are done, and that are not on the server's disk yet. */
export interface WriteBehind<F, W> {
  /** Gives how many bytes were taken, when there is room for them. Throws what became of earlier ones. */
  write(file: F, piece: Piece<W>, signal: AbortSignal): number | Promise<number>;
  /** What a predecessor had taken; in the order it took them. */
  restore(file: F, piece: Piece<W>): void;
  /** Undefined: the server has answered every write of the file so far (of the range), and its attributes are right. */
  settled(file: F, range?: Range): Promise<void> | undefined;
  /** Everything written so far is on the server's disk; or throws what became of it, once. Undefined: nothing is left. */
  flush(file: F): Promise<void> | undefined;
  /** Files with something left. */
  readonly files: number;
}

export function createWriteBehind<F, W>(parts: WriteBehindParts<F, W>): WriteBehind<F, W> {
  const { clock, budgets, keyOf } = parts;
  const works = new Map<number, FileWrites<W>>();

  function workOf(file: F): FileWrites<W> {
    const key = keyOf(file);
    const known = works.get(key);
    if (known !== undefined) return known;
    const made = createFileWrites<W>({
      clock,
      send: (piece, how) => parts.send(file, piece, how),
      commit: (who) => parts.commit(file, who),
      free: ({ place, data }) => {
        parts.free(place);
        for (const budget of budgets) budget.give(data.length);
      },
      onIdle: () => works.delete(key),
    });
    works.set(key, made);
    return made;
  }

  const hurry = (): void => {
    for (const work of works.values()) work.hurry();
  };

  function accept(file: F, piece: Piece<W>): number {
    const { length } = piece.data;
    for (const budget of budgets) budget.take(length);
    parts.keep(piece.place);
    workOf(file).add(piece, true);
    if (budgets.some((budget) => budget.isHalfUsed)) hurry();
    return length;
  }

  async function acceptLater(file: F, piece: Piece<W>, signal: AbortSignal): Promise<number> {
    for (;;) {
      const lacking = budgets.find((budget) => !budget.has(piece.data.length));
      if (lacking === undefined) return accept(file, piece);
      hurry();
      await lacking.given(signal);
    }
  }

  return {
    write: (file, piece, signal) => {
      works.get(keyOf(file))?.tell();
      const hasRoom = budgets.every((budget) => budget.has(piece.data.length));
      return hasRoom ? accept(file, piece) : acceptLater(file, piece, signal);
    },
    restore: (file, piece) => {
      for (const budget of budgets) budget.take(piece.data.length);
      workOf(file).add(piece, false);
    },
    settled: (file, range) => works.get(keyOf(file))?.settled(range),
    flush: (file) => works.get(keyOf(file))?.flush(),
    get files() {
      return works.size;
    },
  };
}
