import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, Server, type Socket } from 'node:net';
import { loopbackAddress } from '../daemon.ts';

/** A loopback address of this machine that forwards connections to a port in another network. */
export interface Forward extends AsyncDisposable {
  readonly host: string;
  readonly port: number;
}

/**
 * Starts a forwarder. No interface of this machine is connected to the other network, so this process listens, and
 * passes each connection to a process that runs there. If nothing listens at the other end, a connection is accepted
 * and then reset.
 */
export async function startForward(
  network: readonly [string, ...string[]],
  target: { readonly host: string; readonly port: number },
  /** Shown in the process list only. */
  name: string,
): Promise<Forward> {
  const host = loopbackAddress();
  const server = createServer().listen(0, host);
  await once(server, 'listening');
  const { port } = server.address() as { readonly port: number };
  const [file, ...words] = network;
  const child = spawn(file, [...words, process.execPath, import.meta.filename, target.host, `${target.port}`, name], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const ended = once(child, 'exit');
  child.send('listen', server);
  await Promise.race([once(child, 'message'), ended.then(() => Promise.reject(new Error('the forwarder ended')))]);
  server.close();
  return {
    host,
    port,
    [Symbol.asyncDispose]: async () => {
      child.kill('SIGKILL');
      await ended;
    },
  };
}

function connectSockets(incoming: Socket, outgoing: Socket): void {
  const sockets = [incoming, outgoing];
  for (const socket of sockets) {
    socket.on('error', () => {
      for (const peer of sockets) peer.resetAndDestroy();
    });
    socket.on('close', () => {
      for (const peer of sockets) peer.destroy();
    });
  }
  incoming.pipe(outgoing).pipe(incoming);
}

if (import.meta.main) {
  const [host = '', port = ''] = process.argv.slice(2);
  // Ends with the test process, even if that is killed.
  process.on('disconnect', () => process.exit());
  process.once('message', (_, server) => {
    if (!(server instanceof Server)) throw new Error('no server was given');
    server.on('connection', (incoming) => connectSockets(incoming, connect(Number(port), host)));
    process.send?.('listening');
  });
}
