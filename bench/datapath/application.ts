/**
 * An application that works on many files one after the other. Prints the number of files per second:
 *
 *   node application.ts create FOLDER COUNT    → [files made, each with 4 KiB], in a new folder
 *   node application.ts stat FOLDER COUNT      → [the first time, again at once, once more after all]
 *   node application.ts stat-once FOLDER COUNT → [the first time]
 */
import { closeSync, mkdirSync, openSync, statSync, writeSync } from 'node:fs';
import { filesEach } from './tree.ts';

const data = Buffer.alloc(4096, 'stowage ');

function create(folder: string, number: number): void {
  const fd = openSync(`${folder}/a file with some name ${number}`, 'wx', 0o644);
  writeSync(fd, data);
  closeSync(fd);
}

const stat = (folder: string, number: number): unknown =>
  statSync(`${folder}/d${Math.floor(number / filesEach)}/f${number % filesEach}`);

function seconds(from: number, to: number, each: (number: number) => unknown): number {
  const began = performance.now();
  for (let number = from; number < to; number++) each(number);
  return (performance.now() - began) / 1000;
}

/** Goes directory by directory, so that the second stat finds cached attributes that have not expired. */
function statTwice(look: (number: number) => unknown, count: number): readonly number[] {
  let [first, second] = [0, 0];
  for (let from = 0; from < count; from += filesEach) {
    first += seconds(from, from + filesEach, look);
    second += seconds(from, from + filesEach, look);
  }
  return [first, second, seconds(0, count, look)];
}

function measure(what: string, folder: string, count: number): readonly number[] {
  const look = (number: number): unknown => stat(folder, number);
  if (what === 'stat') return statTwice(look, count);
  if (what === 'stat-once') return [seconds(0, count, look)];
  mkdirSync(folder);
  return [seconds(0, count, (number) => create(folder, number))];
}

const [what = '', folder = '', count = ''] = process.argv.slice(2);
console.log(JSON.stringify(measure(what, folder, Number(count)).map((took) => Number(count) / took)));
