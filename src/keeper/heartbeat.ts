import { readSync, writeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';

/**
 * A data path increments a word in the first page of the journal while its event loop runs: four bytes, little-endian,
 * at this offset. Read and write it with system calls: accessing a mapping of a truncated file would kill the process.
 */
export const heartbeatOffset = 8;

const beatMs = 250;

export function startHeartbeat(journal: number, clock: Clock): Disposable {
  const word = new Uint32Array([Math.max(0, heartbeatOf(journal))]);
  let next: Disposable | undefined;
  const beat = (): void => {
    word[0] = (word[0] ?? 0) + 1;
    writeSync(journal, word, 0, word.byteLength, heartbeatOffset);
    next = clock.after(beatMs, beat);
  };
  beat();
  return { [Symbol.dispose]: () => next?.[Symbol.dispose]() };
}

/** Returns -1 if there is none. */
export function heartbeatOf(journal: number): number {
  const word = new Uint32Array(1);
  const read = readSync(journal, word, 0, word.byteLength, heartbeatOffset);
  return read === word.byteLength ? (word[0] ?? -1) : -1;
}
