/**
 * An application that writes, syncs, reads back and stats files of a folder in an endless loop, one call after the other. It prints
 * the duration of the longest call of each turn:
 *
 *   node application.ts FOLDER      → lines {"turns", "operations", "ms", "error"?}
 *
 * It ends when its standard input is closed, which it checks after each turn.
 */
import { closeSync, fsyncSync, openSync, readSync, statSync, unlinkSync, writeSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';

const [folder = ''] = process.argv.slice(2);
const files = 16;
const data = Buffer.alloc(4096);
const read = Buffer.alloc(4096);

let [operations, longest] = [0, 0];

function timed<T>(does: () => T): T {
  const began = performance.now();
  try {
    return does();
  } finally {
    operations++;
    longest = Math.max(longest, performance.now() - began);
  }
}

function turn(number: number): void {
  const path = `${folder}/file-${number % files}`;
  data.fill(`turn ${number} `);
  const fd = timed(() => openSync(path, 'w+'));
  timed(() => writeSync(fd, data));
  timed(() => fsyncSync(fd));
  timed(() => closeSync(fd));
  const again = timed(() => openSync(path, 'r'));
  timed(() => readSync(again, read, 0, read.length, 0));
  timed(() => closeSync(again));
  if (!read.equals(data)) throw new Error(`turn ${number} read something else than it wrote`);
  if (timed(() => statSync(path)).size !== data.length) throw new Error(`turn ${number} saw another size`);
  if (number % files === 0) timed(() => unlinkSync(path));
}

let isOver = false;
process.stdin.on('end', () => (isOver = true)).resume();
for (let turns = 1; !isOver; turns++) {
  longest = 0;
  let error: string | undefined;
  try {
    turn(turns);
  } catch (cause) {
    error = String(cause);
  }
  process.stdout.write(`${JSON.stringify({ turns, operations, ms: longest, error })}\n`);
  // Lets the event loop notice the end of standard input.
  await setImmediate();
}
process.exit(0);
