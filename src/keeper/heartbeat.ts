import { readSync, writeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';

/**
 * A data path counts up a word in the first page of the journal as long as its event loop turns: four bytes, little-endian,
 * at this offset. Who reads or writes it does so by a call: a mapping of a file that was cut short would kill the reader.
 */
export const heartbeatAt = 8;

const beatMs = 250;

export function beat(journal: number, clock: Clock): Disposable {
  const word = new Uint32Array([Math.max(0, heartbeatOf(journal))]);
  let next: Disposable | undefined;
  const again = (): void => {
    word[0] = (word[0] ?? 0) + 1;
    writeSync(journal, word, 0, word.byteLength, heartbeatAt);
    next = clock.after(beatMs, again);
  };
  again();
  return { [Symbol.dispose]: () => next?.[Symbol.dispose]() };
}

/** -1: there is none. */
export function heartbeatOf(journal: number): number {
  const word = new Uint32Array(1);
  const read = readSync(journal, word, 0, word.byteLength, heartbeatAt);
  return read === word.byteLength ? (word[0] ?? -1) : -1;
}
