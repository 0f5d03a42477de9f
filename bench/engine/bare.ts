/**
 * The yardstick: only the file system calls of a directory volume, with the store's durability and concurrency, and
 * Node's default number of threads (more threads make it slower). It checks no names and keeps no records.
 */
import { mkdir, open, rmdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';

const [folder = '', prefix = '', countText, inFlightText] = process.argv.slice(2);
const count = Number(countText);
const meta = JSON.stringify({ version: 1, id: 'sv1-00000000-0000-4000-8000-000000000000', padding: 'x'.repeat(200) });

const parent = await open(folder, 'r');

async function create(path: string): Promise<void> {
  const file = await open(`${path}.meta`, 'wx', 0o600);
  await file.write(meta);
  await file.datasync();
  await file.close();
  await mkdir(path);
  await parent.sync();
}

async function remove(path: string): Promise<void> {
  await rmdir(path);
  await unlink(`${path}.meta`);
  await parent.sync();
}

async function timed(work: (path: string) => Promise<void>): Promise<number> {
  let next = 0;
  const began = performance.now();
  const worker = async (): Promise<void> => {
    while (next < count) await work(join(folder, `${prefix}-${next++}`));
  };
  await Promise.all(Array.from({ length: Number(inFlightText) }, worker));
  return performance.now() - began;
}

const createMs = await timed(create);
const deleteMs = await timed(remove);
await parent.close();
console.log(JSON.stringify({ createMs, deleteMs }));
