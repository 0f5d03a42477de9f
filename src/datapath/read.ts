import { outHeaderSize } from '#wire/fuse/abi.ts';
import type { ReadReply, Request } from '#wire/fuse/operations.ts';
import type { DeferredBuffer } from '#wire/nfs3/procedures.ts';
import type { Context } from './context.ts';
import { access } from './identity.ts';
import type { ReadBuffers } from './read-buffers.ts';
import type { Writes } from './writes.ts';

interface ReadParts {
  readonly writes: Writes;
  readonly memory: ReadBuffers;
  readonly maxRead: number;
}

type Read = (id: number, fh: number, offset: number, size: number, request: Request) => Promise<ReadReply>;

/** Reads from the server, after its answers to earlier writes of the range. */
export function createRead({ nfs, server, attributes }: Context, { writes, memory, maxRead }: ReadParts): Read {
  const readInto = (id: number, fh: number, offset: number, into: Buffer | DeferredBuffer, request: Request) =>
    server.callOnOpenFile(request, id, fh, (handle, options) => nfs.read(handle, offset, into, options), access.read);

  /** Reads the rest after a short read: the kernel takes a short answer as end of file. */
  async function readRest(id: number, fh: number, offset: number, into: Buffer, request: Request): Promise<number> {
    let done = 0;
    while (done < into.length) {
      const { count, isEnd } = await readInto(id, fh, offset + done, into.subarray(done, done + maxRead), request);
      done += count;
      if (isEnd || count === 0) break;
    }
    return done;
  }

  async function readOnce(id: number, fh: number, offset: number, size: number, request: Request): Promise<ReadReply> {
    let buffer: Buffer | undefined;
    const into: DeferredBuffer = {
      length: Math.min(size, maxRead),
      take: (length) => {
        buffer = memory.take(outHeaderSize + size);
        return buffer.subarray(outHeaderSize, outHeaderSize + length);
      },
    };
    const since = attributes.now();
    const { count, isEnd, attributes: found } = await readInto(id, fh, offset, into, request);
    if (found !== undefined) attributes.update(id, found, since);
    const answer = buffer ?? memory.take(outHeaderSize);
    let length = count;
    if (!isEnd && count > 0 && count < size)
      length += await readRest(
        ...([id, fh, offset + count, answer.subarray(outHeaderSize + count, outHeaderSize + size), request] as const),
      );
    memory.answered(answer);
    return { buffer: answer, length };
  }

  async function read(id: number, fh: number, offset: number, size: number, request: Request): Promise<ReadReply> {
    for (;;) {
      await writes.settled(id, request, { offset, length: size });
      const [end = 0, revalidations] = [writes.end(id), writes.revalidations];
      const found = await readOnce(id, fh, offset, size, request);
      const isCut = found.length < size && end > offset + found.length;
      if (!isCut && revalidations === writes.revalidations) return found;
      // The server did not know yet that the file continues there; the kernel would take that as its end.
      await writes.settled(id, request, { offset, length: Number.POSITIVE_INFINITY });
    }
  }

  return read;
}
