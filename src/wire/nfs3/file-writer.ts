import { Writable } from 'node:stream';
import { createLimiter } from '#base/limiter.ts';
import type { CallOptions } from '../rpc/client.ts';
import type { NfsClient } from './client.ts';
import { type FileHandle, maxTransferBytes, stability } from './structures.ts';

export interface FileWriterOptions extends CallOptions {
  /** Bytes per WRITE: what the server prefers, at most 1 MiB. */
  readonly size?: number;
  /** The number of WRITEs in flight. */
  readonly atOnce?: number;
  /** How many uncommitted bytes are kept before the writer sends COMMIT. */
  readonly window?: number;
}

/**
 * Writes to a file with unstable WRITEs: the server may keep the data in memory until COMMIT. A server that restarts in between
 * loses them, which its write verifier shows. So the writer keeps the data until they are committed, and resends them. Data
 * passed to `write` must not change before `flush` has ended.
 */
export interface FileWriter {
  /** Resolves when there is room for more data, which may be before this data is written. */
  write(offset: number, data: Uint8Array): Promise<void>;
  /** Resolves when all data are on the server's stable storage. */
  flush(): Promise<void>;
}

interface PendingWrite {
  readonly offset: number;
  readonly data: Uint8Array;
  verifier: bigint;
}

const defaultWindowBytes = 32 * 1024 * 1024;
/** Give up on a server that restarts this often during one flush. */
const maxCommitRounds = 8;

export function createFileWriter(client: NfsClient, handle: FileHandle, options: FileWriterOptions = {}): FileWriter {
  const { size = maxTransferBytes, window = defaultWindowBytes } = options;
  const limit = createLimiter(options.atOnce ?? 16);
  const uncommitted = new Set<PendingWrite>();
  const inFlight = new Set<Promise<void>>();
  let uncommittedBytes = 0;
  let failure: { readonly cause: unknown } | undefined;

  /** A server may write fewer bytes than it received, so this repeats the WRITE. */
  async function send(piece: PendingWrite): Promise<void> {
    let from = 0;
    let isStable = true;
    while (from < piece.data.length) {
      const remaining = piece.data.subarray(from);
      const { count, committed, verifier } = await client.write(
        handle,
        piece.offset + from,
        remaining,
        stability.unstable,
        options,
      );
      if (count === 0) throw new Error('the server wrote nothing, and gave no reason');
      // If a chunk needs several WRITEs, all of them must return the same verifier: otherwise the first data may be lost.
      if (from === 0) piece.verifier = verifier;
      else if (verifier !== piece.verifier) {
        from = 0;
        continue;
      }
      isStable &&= committed !== stability.unstable;
      from += count;
    }
    if (isStable) forget(piece);
  }

  function forget(piece: PendingWrite): void {
    if (uncommitted.delete(piece)) uncommittedBytes -= piece.data.length;
  }

  function start(piece: PendingWrite): Promise<void> {
    const write = limit
      .run(() => send(piece))
      .catch((cause: unknown) => {
        failure ??= { cause };
      });
    inFlight.add(write);
    void write.then(() => inFlight.delete(write));
    return write;
  }

  async function waitForWrites(): Promise<void> {
    while (inFlight.size > 0) await Promise.all(inFlight);
    if (failure !== undefined) throw failure.cause;
  }

  async function flush(): Promise<void> {
    for (let round = 0; ; round++) {
      await waitForWrites();
      if (uncommitted.size === 0) return;
      if (round === maxCommitRounds) throw new Error('the server lost uncommitted data again and again');
      const { verifier } = await client.commit(handle, 0, 0, options);
      const lostWrites: PendingWrite[] = [];
      for (const piece of uncommitted) {
        if (piece.verifier === verifier) forget(piece);
        else lostWrites.push(piece);
      }
      for (const piece of lostWrites) void start(piece);
    }
  }

  return {
    flush,
    write: async (offset, data) => {
      for (let from = 0; from < data.length; from += size) {
        if (failure !== undefined) throw failure.cause;
        if (uncommittedBytes >= window) await flush();
        const piece: PendingWrite = { offset: offset + from, data: data.subarray(from, from + size), verifier: 0n };
        uncommitted.add(piece);
        uncommittedBytes += piece.data.length;
        void start(piece);
      }
    },
  };
}

/** A Node stream. 'finish' means that all data are on the server's stable storage. */
export function createWriteStream(
  client: NfsClient,
  handle: FileHandle,
  options: FileWriterOptions & { readonly start?: number } = {},
): Writable {
  const writer = createFileWriter(client, handle, options);
  let offset = options.start ?? 0;
  const callBack = (work: Promise<void>, done: (error?: Error | null) => void): void => {
    work.then(() => done(), done);
  };
  return new Writable({
    highWaterMark: options.size ?? maxTransferBytes,
    // Uncommitted data must not change; the chunks of a stream belong to its consumer.
    write: (chunk: Buffer, _encoding, done) => {
      const from = offset;
      offset += chunk.length;
      callBack(writer.write(from, chunk), done);
    },
    final: (done) => callBack(writer.flush(), done),
  });
}
