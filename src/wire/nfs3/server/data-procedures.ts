import { type BigIntStats, fchmodSync, fstatSync, read as readAsync, readSync, writeSync } from 'node:fs';
import type { Reply } from '../../rpc/server.ts';
import { XdrError } from '../../xdr/reader.ts';
import { type Attributes, maxTransferBytes, stability, writePostAttributes } from '../structures.ts';
import { modeAfterWrite, permission, requireDataPermission } from './access.ts';
import { writeWccData } from './attributes.ts';
import type { Descriptor } from './descriptors.ts';
import { type Export, readNode, requireWritable } from './export.ts';
import type { Node } from './nodes.ts';
import { type ProcedureDefinition, type ProcedureHandler, successReply } from './procedure.ts';
import type { ReadMemory } from './read-memory.ts';
import { refuse } from './refusal.ts';

const bigint = { bigint: true } as const;

/** The sender copies data up to this length, so they may lie in a buffer that is reused at once. */
const smallReadBytes = 4096;
/** After a read that waited for the disk, this many reads run in Node's threads. */
const threadReadsAfterSlowRead = 64;
/** The limit on concurrent reads in threads: each holds up to 1 MiB of memory. */
const maxThreadReads = 32;

/** Opens a file and returns its stats; refuses deleted files. */
function openFileData(exported: Export, node: Node, forWriting: boolean): readonly [Descriptor, BigIntStats] {
  const descriptor = exported.tree.openData(node, forWriting);
  const stats = fstatSync(descriptor.fd, bigint);
  // Another process deleted the file while it was open here.
  if (stats.nlink === 0n) {
    exported.tree.noteRemoval(stats);
    refuse('STALE');
  }
  return [descriptor, stats];
}

function createRead(memory: ReadMemory, slowMs: number): ProcedureHandler {
  const scratch = Buffer.allocUnsafeSlow(smallReadBytes);
  let threadReadsLeft = 0;
  let runningThreadReads = 0;

  async function readInThread(exported: Export, held: Descriptor, offset: number, count: number): Promise<Buffer> {
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
    const into = memory.take(count);
    held.users++;
    runningThreadReads++;
    readAsync(held.fd, into, 0, count, offset, (cause, bytes) =>
      cause === null ? resolve(into.subarray(0, bytes)) : reject(cause),
    );
    try {
      return await promise;
    } finally {
      runningThreadReads--;
      exported.tree.descriptors.release(held);
    }
  }

  /**
   * Reads synchronously: cached data take a microsecond, a thread takes thirty. But one slow read delays all clients, so the
   * reads after it use threads.
   */
  function readSynchronously(held: Descriptor, offset: number, count: number): Buffer {
    const into = count <= smallReadBytes ? scratch : memory.take(count);
    const started = performance.now();
    const bytes = readSync(held.fd, into, 0, count, offset);
    // Allow for the copy: at most a millisecond per megabyte.
    if (performance.now() - started > slowMs + count / 1_000_000) threadReadsLeft = threadReadsAfterSlowRead;
    return into.subarray(0, bytes);
  }

  return (exported, reader, who) => {
    const node = readNode(exported, reader);
    const offset = reader.size();
    const requestedBytes = Math.min(reader.u32(), maxTransferBytes);
    const [held, stats] = openFileData(exported, node, false);
    requireDataPermission(stats, who, permission.read);
    const size = Number(stats.size);
    const count = Math.max(0, Math.min(requestedBytes, size - offset));
    const attributes = exported.toAttributes(stats);
    if (threadReadsLeft === 0 || runningThreadReads >= maxThreadReads)
      return readReply(attributes, readSynchronously(held, offset, count), offset, size);
    threadReadsLeft--;
    return readInThread(exported, held, offset, count).then((data) => readReply(attributes, data, offset, size));
  };
}

function readReply(attributes: Attributes, data: Buffer, offset: number, size: number): Reply {
  return (writer) => {
    writer.u32(0);
    writePostAttributes(writer, attributes);
    writer
      .u32(data.length)
      .bool(offset + data.length >= size)
      .u32(data.length);
    return data;
  };
}

const write: ProcedureHandler = (exported, reader, who) => {
  const { toAttributes, verifier } = exported;
  const node = readNode(exported, reader);
  const offset = reader.size();
  const count = reader.u32();
  const stable = reader.u32();
  if (stable > stability.fileSync) throw new XdrError(`${stable} is not a stable_how`);
  const data = reader.opaqueView(reader.remaining);
  requireWritable(exported);
  const [held, before] = openFileData(exported, node, true);
  requireDataPermission(before, who, permission.write);
  if (offset + data.length > Number.MAX_SAFE_INTEGER) refuse('FBIG');
  const written = writeAll(held.fd, data.subarray(0, Math.min(count, data.length)), offset);
  // A WRITE of zero bytes changes nothing. Our client uses it to query the write verifier.
  const mode = written === 0 ? undefined : modeAfterWrite(before, who);
  if (mode !== undefined) fchmodSync(held.fd, mode);
  const answer = (): Reply => {
    const change = { before: toAttributes(before), after: toAttributes(fstatSync(held.fd, bigint)) };
    return successReply((writer) => {
      writeWccData(writer, change);
      writer.u32(written).u32(stable).fixedOpaque(verifier.bytes);
    });
  };
  return stable === stability.unstable ? answer() : replyWhenSynced(exported, node, held, answer);
};

/** Writes synchronously, straight from the receive buffer. If the disk gets full, returns the number of bytes written so far. */
function writeAll(fd: number, data: Buffer, offset: number): number {
  let written = 0;
  while (written < data.length) {
    try {
      const writtenNow = writeSync(fd, data, written, data.length - written, offset + written);
      // POSIX allows a write of zero bytes. The reply is then a short count, as for a full disk.
      if (writtenNow === 0) break;
      written += writtenNow;
    } catch (cause) {
      if (written === 0) throw cause;
      break;
    }
  }
  return written;
}

/** If the sync fails, data of any client may be lost: the new write verifier makes all clients resend their uncommitted data. */
async function replyWhenSynced(exported: Export, node: Node, held: Descriptor, answer: () => Reply): Promise<Reply> {
  held.users++;
  try {
    await exported.durability.syncData(node, held);
    return answer();
  } catch (cause) {
    exported.verifier.renew();
    throw cause;
  } finally {
    exported.tree.descriptors.release(held);
  }
}

const commit: ProcedureHandler = (exported, reader) => {
  const { toAttributes, verifier } = exported;
  const node = readNode(exported, reader);
  // Ignore offset and count and sync the whole file, which RFC 1813 allows and which is no slower.
  reader.skipBytes(12);
  const [held, before] = openFileData(exported, node, false);
  return replyWhenSynced(exported, node, held, () => {
    const change = { before: toAttributes(before), after: toAttributes(fstatSync(held.fd, bigint)) };
    return successReply((writer) => {
      writeWccData(writer, change);
      writer.fixedOpaque(verifier.bytes);
    });
  });
};

export const createDataProcedures = (memory: ReadMemory, slowMs: number): readonly ProcedureDefinition[] => [
  { number: 6, name: 'READ', failureWords: 1, handle: createRead(memory, slowMs) },
  { number: 7, name: 'WRITE', failureWords: 2, nonIdempotent: 'frequent', handle: write },
  { number: 21, name: 'COMMIT', failureWords: 2, handle: commit },
];
