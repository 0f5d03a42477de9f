import { outHeaderSize } from '#wire/fuse/abi.ts';
import type { ReadReply, Request } from '#wire/fuse/operations.ts';
import type { DeferredBuffer } from '#wire/nfs3/procedures.ts';
import { access } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import type { ReadBuffers } from './read-buffers.ts';
import type { Writes } from './writes.ts';

interface ReadParts {
  readonly writes: Writes;
  readonly readBuffers: ReadBuffers;
  readonly maxRead: number;
}

type Read = (id: number, fh: number, offset: number, size: number, request: Request) => Promise<ReadReply>;

/** Reads from the server, after it has answered the earlier writes to the range. */
export function createRead(
  { nfs, server, attributes }: MountContext,
  { writes, readBuffers, maxRead }: ReadParts,
): Read {
  const readInto = (id: number, fh: number, offset: number, target: Buffer | DeferredBuffer, request: Request) =>
    server.callOnOpenFile(request, id, fh, (handle, options) => nfs.read(handle, offset, target, options), access.read);

  /** Reads the rest after a short read: the kernel takes a short answer as end of file. */
  async function readRest(id: number, fh: number, offset: number, rest: Buffer, request: Request): Promise<number> {
    let readBytes = 0;
    while (readBytes < rest.length) {
      const { count, isEnd } = await readInto(
        id,
        fh,
        offset + readBytes,
        rest.subarray(readBytes, readBytes + maxRead),
        request,
      );
      readBytes += count;
      if (isEnd || count === 0) break;
    }
    return readBytes;
  }

  async function readOnce(id: number, fh: number, offset: number, size: number, request: Request): Promise<ReadReply> {
    let buffer: Buffer | undefined;
    const deferred: DeferredBuffer = {
      length: Math.min(size, maxRead),
      take: (length) => {
        buffer = readBuffers.take(outHeaderSize + size);
        return buffer.subarray(outHeaderSize, outHeaderSize + length);
      },
    };
    const eventNumber = attributes.eventNumber();
    const { count, isEnd, attributes: found } = await readInto(id, fh, offset, deferred, request);
    if (found !== undefined) attributes.update(id, found, eventNumber);
    const answer = buffer ?? readBuffers.take(outHeaderSize);
    let length = count;
    if (!isEnd && count > 0 && count < size)
      length += await readRest(
        ...([id, fh, offset + count, answer.subarray(outHeaderSize + count, outHeaderSize + size), request] as const),
      );
    readBuffers.release(answer);
    return { buffer: answer, length };
  }

  async function read(id: number, fh: number, offset: number, size: number, request: Request): Promise<ReadReply> {
    for (;;) {
      await writes.waitUntilAnswered(id, request, { offset, length: size });
      const [end = 0, revalidations] = [writes.unansweredEnd(id), writes.revalidations];
      const found = await readOnce(id, fh, offset, size, request);
      const isTruncated = found.length < size && end > offset + found.length;
      if (!isTruncated && revalidations === writes.revalidations) return found;
      // The server did not have the later writes yet; the kernel would take the short read as the end of the file.
      await writes.waitUntilAnswered(id, request, { offset, length: Number.POSITIVE_INFINITY });
    }
  }

  return read;
}
