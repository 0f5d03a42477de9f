import { line, lines, linesAt, maxListed } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/**
 * Makes a request's changes of reference counts idempotent by recording them in its line, so that a resend after a
 * crash does not count again. The record holds the new count, never an increment. A process does one such step at a
 * time, so at most one was interrupted by a crash; the successor completes it before any other count changes.
 */
export interface IdempotentCounts {
  /** Without a place: for a request that is never resent. */
  once(step: CountStep, put: (count: number) => void): void;
  /** Completes an interrupted step. Call it first: later the count may differ. */
  end(put: (step: InterruptedStep) => void): void;
  /** Whether the same listing counted the node before a crash; true once per count. */
  wasListed(place: number, node: number): boolean;
  /**
   * Records that a listing counted the node. A crash before this leaves the count too high, which costs memory only.
   */
  listed(place: number, node: number): void;
  /** The kernel will not learn of the node after all. Call before decrementing. */
  takeBack(place: number, node: number): void;
}

export interface CountStep {
  readonly place: number | undefined;
  readonly what: 'looked' | 'opened';
  readonly node: number;
  /** The new count. */
  readonly becomes: number;
}

export interface InterruptedStep extends Omit<CountStep, 'place'> {
  readonly mount: number;
}

const began = 0x4000_0000;
const ended = 0x2000_0000;
/** In a listing: a removed node. */
const nobody = -1;

export function createIdempotentCounts({ words }: JournalMemory): IdempotentCounts {
  const at = (place: number, field: number): number => (linesAt + place * line.size + field) / 4;
  const store = (index: number, value: number): void => void Atomics.store(words, index, value);
  const lengthOf = (place: number): number => words[at(place, line.listed)] ?? 0;
  const listOf = (place: number): Int32Array => words.subarray(at(place, line.list)).subarray(0, lengthOf(place));
  /** Counts of a predecessor's listings that the resent listings have not reached yet. */
  const left = new Map<number, number[]>();
  for (let place = 0; place < lines; place++)
    if (words[at(place, line.mount)] !== 0 && lengthOf(place) > 0) left.set(place, [...listOf(place)]);

  function endOne(place: number, mount: number, what: CountStep['what'], put: (step: InterruptedStep) => void): void {
    const step = at(place, line[what]);
    const known = words[step] ?? 0;
    if ((known & began) === 0) return;
    const node = known & ~began;
    put({ mount, what, node, becomes: words[step + 1] ?? 0 });
    store(step, node | ended);
  }

  return {
    once: ({ place, what, node, becomes }, put) => {
      if (place === undefined) {
        put(becomes);
        return;
      }
      const step = at(place, line[what]);
      const known = words[step];
      if (known === (node | ended)) return;
      words[step + 1] = becomes;
      store(step, node | began);
      put(becomes);
      store(step, node | ended);
    },
    end: (put) => {
      for (let place = 0; place < lines; place++) {
        const mount = (words[at(place, line.mount)] ?? 0) - 1;
        if (mount >= 0) for (const what of ['looked', 'opened'] as const) endOne(place, mount, what, put);
      }
    },
    wasListed: (place, node) => {
      // The line now belongs to another request.
      if (lengthOf(place) === 0) left.delete(place);
      const known = left.get(place);
      const found = known?.indexOf(node) ?? -1;
      if (found >= 0) known?.splice(found, 1);
      return found >= 0;
    },
    listed: (place, node) => {
      const length = lengthOf(place);
      if (length >= maxListed) return;
      words[at(place, line.list) + length] = node;
      store(at(place, line.listed), length + 1);
    },
    takeBack: (place, node) => {
      const step = at(place, line.looked);
      if (((words[step] ?? 0) & ~(began | ended)) === node) store(step, 0);
      const found = listOf(place).lastIndexOf(node);
      // Do not move another node here: a crash in between would list it twice and count it too low.
      if (found >= 0) store(at(place, line.list) + found, nobody);
    },
  };
}
