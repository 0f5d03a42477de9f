import { Duplex } from 'node:stream';

export interface StreamOptions {
  /** Bytes that were read from the socket before. */
  readonly head?: Buffer;
  /** Transforms the bytes that are read. If it throws, the stream ends, since no answer is possible. */
  readonly filter?: (chunk: Buffer) => Iterable<Buffer>;
}

/**
 * Wraps a socket for HTTP/2 in Node. Given the socket itself, Node attaches below JavaScript, where nothing can be read before it; and if
 * a write of an earlier protocol is still in flight then, the whole process aborts.
 */
export function streamOver(socket: Duplex, { head, filter = (chunk) => [chunk] }: StreamOptions = {}): Duplex {
  const duplex: Duplex = new Duplex({
    allowHalfOpen: true,
    read: () => {
      socket.resume();
    },
    write: (chunk: Buffer, _encoding, done) => {
      socket.write(chunk, (error) => done(error));
    },
    final: (done) => {
      socket.end(() => done());
    },
    destroy: (error, done) => {
      socket.destroy();
      done(error);
    },
  });
  if (head !== undefined && head.length > 0) duplex.push(head);
  socket.on('data', (chunk: Buffer) => {
    try {
      for (const part of filter(chunk)) if (!duplex.push(part)) socket.pause();
    } catch {
      duplex.destroy();
    }
  });
  socket.once('end', () => duplex.push(null));
  socket.once('error', () => duplex.destroy());
  socket.once('close', () => duplex.destroy());
  return duplex;
}
