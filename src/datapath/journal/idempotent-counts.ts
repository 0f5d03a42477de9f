import { line, lineCount, linesAt, maxListed } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/**
 * Makes a request's changes of reference counts idempotent by recording them in its line, so that a resend after a
 * crash does not count again. The record holds the new count, never an increment. A process does one such step at a
 * time, so at most one was interrupted by a crash; the successor completes it before any other count changes.
 */
export interface IdempotentCounts {
  /** Without a place: for a request that is never resent. */
  applyOnce(step: CountStep, put: (count: number) => void): void;
  /** Completes an interrupted step. Call it first: later the count may differ. */
  completeInterrupted(put: (step: InterruptedStep) => void): void;
  /** Whether the same listing counted the node before a crash; true once per count. */
  takeListed(place: number, node: number): boolean;
  /**
   * Records that a listing counted the node. A crash before this leaves the count too high, which costs memory only.
   */
  recordListed(place: number, node: number): void;
  /** The kernel will not learn of the node after all. Call before decrementing. */
  takeBack(place: number, node: number): void;
}

export interface CountStep {
  readonly place: number | undefined;
  readonly field: 'looked' | 'opened';
  readonly node: number;
  /** The new count. */
  readonly newCount: number;
}

export interface InterruptedStep extends Omit<CountStep, 'place'> {
  readonly mount: number;
}

const beganFlag = 0x4000_0000;
const endedFlag = 0x2000_0000;
/** In a listing: a removed node. */
const removedNode = -1;

export function createIdempotentCounts({ words }: JournalMemory): IdempotentCounts {
  const wordAt = (place: number, field: number): number => (linesAt + place * line.size + field) / 4;
  const store = (index: number, value: number): void => void Atomics.store(words, index, value);
  const lengthOf = (place: number): number => words[wordAt(place, line.listed)] ?? 0;
  const listedNodes = (place: number): Int32Array =>
    words.subarray(wordAt(place, line.list)).subarray(0, lengthOf(place));
  /** Counts of a predecessor's listings that the resent listings have not reached yet. */
  const unclaimed = new Map<number, number[]>();
  for (let place = 0; place < lineCount; place++)
    if (words[wordAt(place, line.mount)] !== 0 && lengthOf(place) > 0) unclaimed.set(place, [...listedNodes(place)]);

  function completeStep(
    place: number,
    mount: number,
    what: CountStep['field'],
    put: (step: InterruptedStep) => void,
  ): void {
    const step = wordAt(place, line[what]);
    const known = words[step] ?? 0;
    if ((known & beganFlag) === 0) return;
    const node = known & ~beganFlag;
    put({ mount, field: what, node, newCount: words[step + 1] ?? 0 });
    store(step, node | endedFlag);
  }

  return {
    applyOnce: ({ place, field: what, node, newCount }, put) => {
      if (place === undefined) {
        put(newCount);
        return;
      }
      const step = wordAt(place, line[what]);
      const known = words[step];
      if (known === (node | endedFlag)) return;
      words[step + 1] = newCount;
      store(step, node | beganFlag);
      put(newCount);
      store(step, node | endedFlag);
    },
    completeInterrupted: (put) => {
      for (let place = 0; place < lineCount; place++) {
        const mount = (words[wordAt(place, line.mount)] ?? 0) - 1;
        if (mount >= 0) for (const what of ['looked', 'opened'] as const) completeStep(place, mount, what, put);
      }
    },
    takeListed: (place, node) => {
      // The line now belongs to another request.
      if (lengthOf(place) === 0) unclaimed.delete(place);
      const known = unclaimed.get(place);
      const found = known?.indexOf(node) ?? -1;
      if (found >= 0) known?.splice(found, 1);
      return found >= 0;
    },
    recordListed: (place, node) => {
      const length = lengthOf(place);
      if (length >= maxListed) return;
      words[wordAt(place, line.list) + length] = node;
      store(wordAt(place, line.listed), length + 1);
    },
    takeBack: (place, node) => {
      const step = wordAt(place, line.looked);
      if (((words[step] ?? 0) & ~(beganFlag | endedFlag)) === node) store(step, 0);
      const found = listedNodes(place).lastIndexOf(node);
      // Do not move another node here: a crash in between would list it twice and count it too low.
      if (found >= 0) store(wordAt(place, line.list) + found, removedNode);
    },
  };
}
