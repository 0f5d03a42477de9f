import { Readable } from 'node:stream';
import type { CallOptions } from '../rpc/client.ts';
import type { NfsClient } from './client.ts';
import { type FileHandle, maxTransferBytes } from './structures.ts';

export interface FileReaderOptions extends CallOptions {
  readonly start?: number;
  /** Exclusive. */
  readonly end?: number;
  /** Bytes per READ: what the server prefers, at most 1 MiB. */
  readonly size?: number;
  /** The number of READs in flight ahead of the reader. */
  readonly ahead?: number;
}

/**
 * Fills the buffer up to the end of the file; returns the number of bytes. A server may return fewer bytes than requested, so
 * this repeats the READ.
 */
export async function readFully(
  client: NfsClient,
  handle: FileHandle,
  offset: number,
  into: Buffer,
  options: CallOptions = {},
): Promise<number> {
  let filled = 0;
  while (filled < into.length) {
    const { count, isEnd } = await client.read(handle, offset + filled, into.subarray(filled), options);
    filled += count;
    if (isEnd || count === 0) break;
  }
  return filled;
}

/** Yields the file's bytes in order, with several READs in flight. */
export async function* readFile(
  client: NfsClient,
  handle: FileHandle,
  options: FileReaderOptions = {},
): AsyncGenerator<Buffer, void> {
  const { size = maxTransferBytes, ahead = 4, end = Number.MAX_SAFE_INTEGER } = options;
  let next = options.start ?? 0;
  const startRead = (): { readonly into: Buffer; readonly count: Promise<number> } => {
    const into = Buffer.allocUnsafeSlow(Math.min(size, end - next));
    const count = readFully(client, handle, next, into, options);
    // The promise is awaited later; until then a failure must not count as an unhandled rejection.
    count.catch(() => undefined);
    next += into.length;
    return { into, count };
  };
  const queue: ReturnType<typeof startRead>[] = [];
  for (;;) {
    while (queue.length < ahead && next < end) queue.push(startRead());
    const first = queue.shift();
    if (first === undefined) return;
    const count = await first.count;
    if (count > 0) yield first.into.subarray(0, count);
    if (count < first.into.length) return;
  }
}

export const createReadStream = (client: NfsClient, handle: FileHandle, options: FileReaderOptions = {}): Readable =>
  Readable.from(readFile(client, handle, options), { objectMode: false });
