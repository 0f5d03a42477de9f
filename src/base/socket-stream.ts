import { Duplex } from 'node:stream';

export interface Over {
  /** What was read too much, before. */
  readonly head?: Buffer;
  /** What becomes of what is read. Where it throws, the stream ends: nobody could answer that. */
  readonly filter?: (chunk: Buffer) => Iterable<Buffer>;
}

/**
 * A stream over a connection that HTTP/2 in Node is not given itself: it takes hold of a socket below JavaScript, where nothing can be
 * read before it; and when a write of an earlier protocol is still under way then, the whole process aborts.
 */
export function streamOver(socket: Duplex, { head, filter = (chunk) => [chunk] }: Over = {}): Duplex {
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
