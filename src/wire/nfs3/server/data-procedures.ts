import { type BigIntStats, fchmodSync, fstatSync, read as readLater, readSync, writeSync } from 'node:fs';
import type { Reply } from '../../rpc/server.ts';
import { XdrError } from '../../xdr/reader.ts';
import { type Attributes, maxTransfer, stability, writePostAttributes } from '../structures.ts';
import { checkData, may, modeAfterWrite } from './access.ts';
import { writeChange } from './attributes.ts';
import type { Descriptor } from './descriptors.ts';
import { checkWritable, type Export, nodeOf } from './export.ts';
import type { Node } from './nodes.ts';
import { type Definition, ok, type Run } from './procedure.ts';
import type { ReadMemory } from './read-memory.ts';
import { refuse } from './refusal.ts';

const bigint = { bigint: true } as const;

/** The sender copies data up to this: they may lie in memory that is used again at once. */
const smallRead = 4096;
/** After a read that had to wait for the disk, so many are done beside the others, in Node's threads. */
const readsAside = 64;
/** Each holds up to a MiB. */
const maxAside = 32;

/** Opens the data, if the caller may use them. */
function dataFor(exported: Export, node: Node, forWriting: boolean): readonly [Descriptor, BigIntStats] {
  const descriptor = exported.tree.data(node, forWriting);
  const stats = fstatSync(descriptor.fd, bigint);
  // Removed by others, while it was kept open here.
  if (stats.nlink === 0n) {
    exported.tree.removed(stats);
    refuse('STALE');
  }
  return [descriptor, stats];
}

function createRead(memory: ReadMemory, slowMs: number): Run {
  const scratch = Buffer.allocUnsafeSlow(smallRead);
  let aside = 0;
  let running = 0;

  async function readAside(exported: Export, held: Descriptor, offset: number, count: number): Promise<Buffer> {
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
    const into = memory.take(count);
    held.users++;
    running++;
    readLater(held.fd, into, 0, count, offset, (cause, bytes) =>
      cause === null ? resolve(into.subarray(0, bytes)) : reject(cause),
    );
    try {
      return await promise;
    } finally {
      running--;
      exported.tree.descriptors.release(held);
    }
  }

  /**
   * In line: what the system has in memory is there in a microsecond, where a thread takes thirty. One slow read holds
   * everybody up, so those that follow it go through threads.
   */
  function readNow(held: Descriptor, offset: number, count: number): Buffer {
    const into = count <= smallRead ? scratch : memory.take(count);
    const started = performance.now();
    const bytes = readSync(held.fd, into, 0, count, offset);
    // Copying takes its time, too: a millisecond for a megabyte at the very most.
    if (performance.now() - started > slowMs + count / 1_000_000) aside = readsAside;
    return into.subarray(0, bytes);
  }

  return (exported, reader, who) => {
    const node = nodeOf(exported, reader);
    const offset = reader.size();
    const wanted = Math.min(reader.u32(), maxTransfer);
    const [held, stats] = dataFor(exported, node, false);
    checkData(stats, who, may.read);
    const size = Number(stats.size);
    const count = Math.max(0, Math.min(wanted, size - offset));
    const attributes = exported.describe(stats);
    if (aside === 0 || running >= maxAside) return readReply(attributes, readNow(held, offset, count), offset, size);
    aside--;
    return readAside(exported, held, offset, count).then((data) => readReply(attributes, data, offset, size));
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

const write: Run = (exported, reader, who) => {
  const { describe, verifier } = exported;
  const node = nodeOf(exported, reader);
  const offset = reader.size();
  const count = reader.u32();
  const stable = reader.u32();
  if (stable > stability.fileSync) throw new XdrError(`${stable} is no degree of stability`);
  const data = reader.window(reader.left);
  checkWritable(exported);
  const [held, before] = dataFor(exported, node, true);
  checkData(before, who, may.write);
  if (offset + data.length > Number.MAX_SAFE_INTEGER) refuse('FBIG');
  const written = writeAll(held.fd, data.subarray(0, Math.min(count, data.length)), offset);
  // A WRITE of zero bytes changes nothing. Our client uses it to ask for the write verifier.
  const mode = written === 0 ? undefined : modeAfterWrite(before, who);
  if (mode !== undefined) fchmodSync(held.fd, mode);
  const answer = (): Reply => {
    const change = { before: describe(before), after: describe(fstatSync(held.fd, bigint)) };
    return ok((writer) => {
      writeChange(writer, change);
      writer.u32(written).u32(stable).fixed(verifier.bytes);
    });
  };
  return stable === stability.unstable ? answer() : whenSaved(exported, node, held, answer);
};

/** In line, out of the received bytes themselves. A disk that is full takes a part, and says so the next time. */
function writeAll(fd: number, data: Buffer, offset: number): number {
  let written = 0;
  while (written < data.length) {
    try {
      const taken = writeSync(fd, data, written, data.length - written, offset + written);
      // POSIX allows it. The answer is then a short count, as for a disk that is full.
      if (taken === 0) break;
      written += taken;
    } catch (cause) {
      if (written === 0) throw cause;
      break;
    }
  }
  return written;
}

/** What could not be saved is lost, of whomever it was: the new verifier tells all to send again what they have. */
async function whenSaved(exported: Export, node: Node, held: Descriptor, answer: () => Reply): Promise<Reply> {
  held.users++;
  try {
    await exported.durability.data(node, held);
    return answer();
  } catch (cause) {
    exported.verifier.renew();
    throw cause;
  } finally {
    exported.tree.descriptors.release(held);
  }
}

const commit: Run = (exported, reader) => {
  const { describe, verifier } = exported;
  const node = nodeOf(exported, reader);
  // Offset and count: all of it is saved, which is allowed, and no slower.
  reader.take(12);
  const [held, before] = dataFor(exported, node, false);
  return whenSaved(exported, node, held, () => {
    const change = { before: describe(before), after: describe(fstatSync(held.fd, bigint)) };
    return ok((writer) => {
      writeChange(writer, change);
      writer.fixed(verifier.bytes);
    });
  });
};

export const createData = (memory: ReadMemory, slowMs: number): readonly Definition[] => [
  { number: 6, name: 'READ', blanks: 1, run: createRead(memory, slowMs) },
  { number: 7, name: 'WRITE', blanks: 2, once: 'frequent', run: write },
  { number: 21, name: 'COMMIT', blanks: 2, run: commit },
];
