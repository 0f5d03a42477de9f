import { line, lines, linesAt, mostListed } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/**
 * What a request has counted, kept in its line: when it comes again after a crash, it is not counted again. It is said what a
 * count becomes, never that it is one more. A process does one such step at a time: at most one was cut off in the middle. It is
 * ended by the successor before anything else counts.
 */
export interface IdempotentCounts {
  /** Left out as a place: for no request that could come again. */
  once(step: CountStep, put: (count: number) => void): void;
  /** Ends what was cut off. To be called first: later the count may be another. */
  end(put: (step: Ended) => void): void;
  /** Whether the same listing has counted the node before a crash; true as often as it did. */
  wasListed(place: number, node: number): boolean;
  /** A listing has counted the node. Of a crash before this is said, the count stays too high: that costs memory only. */
  listed(place: number, node: number): void;
  /** The kernel will not be told of the node after all. To be said before it is counted down. */
  takeBack(place: number, node: number): void;
}

export interface CountStep {
  readonly place: number | undefined;
  readonly what: 'looked' | 'opened';
  readonly node: number;
  /** The count. */
  readonly becomes: number;
}

export interface Ended extends Omit<CountStep, 'place'> {
  readonly mount: number;
}

const began = 0x4000_0000;
const ended = 0x2000_0000;
/** In a listing: a node that was taken back. */
const nobody = -1;

export function createIdempotentCounts({ words }: JournalMemory): IdempotentCounts {
  const at = (place: number, field: number): number => (linesAt + place * line.size + field) / 4;
  const store = (index: number, value: number): void => void Atomics.store(words, index, value);
  const lengthOf = (place: number): number => words[at(place, line.listed)] ?? 0;
  const listOf = (place: number): Int32Array => words.subarray(at(place, line.list)).subarray(0, lengthOf(place));
  /** What a predecessor's listings counted, and the successor's have not met yet. */
  const left = new Map<number, number[]>();
  for (let place = 0; place < lines; place++)
    if (words[at(place, line.mount)] !== 0 && lengthOf(place) > 0) left.set(place, [...listOf(place)]);

  function endOne(place: number, mount: number, what: CountStep['what'], put: (step: Ended) => void): void {
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
      // The line belongs to another request by now.
      if (lengthOf(place) === 0) left.delete(place);
      const known = left.get(place);
      const found = known?.indexOf(node) ?? -1;
      if (found >= 0) known?.splice(found, 1);
      return found >= 0;
    },
    listed: (place, node) => {
      const length = lengthOf(place);
      if (length >= mostListed) return;
      words[at(place, line.list) + length] = node;
      store(at(place, line.listed), length + 1);
    },
    takeBack: (place, node) => {
      const step = at(place, line.looked);
      if (((words[step] ?? 0) & ~(began | ended)) === node) store(step, 0);
      const found = listOf(place).lastIndexOf(node);
      // No other is moved there: killed in between, it would be listed twice, and counted too little.
      if (found >= 0) store(at(place, line.list) + found, nobody);
    },
  };
}
