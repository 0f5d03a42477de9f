import { Duplex } from 'node:stream';

/**
 * A stream over a connection on which something else was spoken before. HTTP/2 in Node takes hold of a socket below JavaScript; when a
 * write of the earlier protocol is still under way then, the whole process aborts. Over such a stream it cannot. `head` is
 * what was read too much.
 */
export function streamOver(socket: Duplex, head: Buffer): Duplex {
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
  if (head.length > 0) duplex.push(head);
  socket.on('data', (chunk: Buffer) => {
    if (!duplex.push(chunk)) socket.pause();
  });
  socket.once('end', () => duplex.push(null));
  socket.once('error', () => duplex.destroy());
  socket.once('close', () => duplex.destroy());
  return duplex;
}
