import type { Stats } from 'node:fs';
import { constants } from 'node:fs';
import { lstat, open, opendir, rename, unlink } from 'node:fs/promises';
import { errno } from './errors.ts';

/** Undefined: it is not there. Never follows a symbolic link. */
export async function lstatIfThere(path: string): Promise<Stats | undefined> {
  try {
    return await lstat(path);
  } catch (cause) {
    if (errno(cause) === 'ENOENT') return undefined;
    throw cause;
  }
}

/** False: it was not there. */
export async function unlinkIfThere(path: string): Promise<boolean> {
  return ifThere(unlink(path));
}

/** False: `from` was not there. */
export async function renameIfThere(from: string, to: string): Promise<boolean> {
  return ifThere(rename(from, to));
}

async function ifThere(work: Promise<void>): Promise<boolean> {
  try {
    await work;
    return true;
  } catch (cause) {
    if (errno(cause) === 'ENOENT') return false;
    throw cause;
  }
}

/** There, but nothing that `readBounded` reads. Its message completes "… cannot be read: ". */
export class UnfitFile extends Error {}

/**
 * O_NOFOLLOW: a planted link must not make us read another file. O_NONBLOCK: opening a planted FIFO must not wait for a
 * writer that never comes.
 */
export async function readBounded(path: string, limit: number): Promise<Buffer> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const opened = await file.stat();
    if (opened.isDirectory()) throw new UnfitFile('it is a directory');
    if (!opened.isFile()) throw new UnfitFile('it is not a plain file');
    // Small files are the rule: one byte more than the first buffer tells whether this one is larger.
    let buffer = Buffer.allocUnsafe(Math.min(limit + 1, 4096));
    let length = 0;
    for (;;) {
      const { bytesRead } = await file.read(buffer, length, buffer.length - length, null);
      length += bytesRead;
      // A short read of a regular file is its end.
      if (length < buffer.length) return buffer.subarray(0, length);
      if (length > limit) throw new UnfitFile(`it is larger than ${limit} bytes`);
      buffer = Buffer.concat([buffer, Buffer.allocUnsafe(limit + 1 - length)]);
    }
  } finally {
    await file.close();
  }
}

/** Content and existence are durable together with the directory's next sync. O_EXCL never follows a link. */
export async function writeNew(path: string, text: string): Promise<void> {
  const file = await open(path, 'wx', 0o600);
  try {
    await file.write(text);
    await file.datasync();
  } catch (cause) {
    await unlinkIfThere(path).catch(() => false);
    throw cause;
  } finally {
    await file.close();
  }
}

export async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/**
 * Callers that ask while a run is under way share the next one: the run under way may have begun before their change
 * was made, so it proves nothing to them; the next one begins after all of them asked, so it covers them all.
 */
export function coalesced(work: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined;
  let next: Promise<void> | undefined;
  const start = (): Promise<void> => {
    const run = work().finally(() => {
      if (running === run) running = undefined;
    });
    running = run;
    return run;
  };
  const startNext = (): Promise<void> => {
    next = undefined;
    return start();
  };
  return () => {
    if (running === undefined) return start();
    next ??= running.then(startNext, startNext);
    return next;
  };
}

/** At most `limit` at a time; the first failure stops taking new items and is thrown when the others are done. */
export async function eachBounded<T>(
  items: Iterable<T> | AsyncIterable<T>,
  limit: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const running = new Set<Promise<void>>();
  let failure: { readonly cause: unknown } | undefined;
  for await (const item of items) {
    const task: Promise<void> = work(item)
      .catch((cause: unknown) => {
        failure ??= { cause };
      })
      .finally(() => running.delete(task));
    running.add(task);
    if (running.size >= limit) await Promise.race(running);
    if (failure !== undefined) break;
  }
  await Promise.all(running);
  if (failure !== undefined) throw failure.cause;
}

export interface RawEntry {
  readonly name: Buffer;
  isDirectory(): boolean;
}

/** Names are bytes to the kernel; as strings, those that are not UTF-8 could be neither looked at nor removed. */
export async function openRaw(directory: Buffer): Promise<AsyncIterable<RawEntry>> {
  // The types know only text encodings; Node takes 'buffer' here as it does for readdir.
  const options = { encoding: 'buffer', bufferSize: 256 } as unknown as { bufferSize: number };
  return (await opendir(directory, options)) as unknown as AsyncIterable<RawEntry>;
}
