import { closeSync, lstatSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { acceptConnection, listenAt, shutDown } from '#base/linux/descriptor-sockets.ts';
import type { Log } from '#base/log.ts';
import { type Connection, createConnection } from './connection.ts';
import { isTrusted, peerCredentials, shutDownAtExit } from './system-calls.ts';

/** Each connection occupies a thread, so keepers are started with a larger pool (UV_THREADPOOL_SIZE). */
const maxConnections = 12;
export const keeperThreads = 24;

/** Throws unless the folder exists or can be created, accessible to this user only. */
export function ensurePrivateFolder(path: string): void {
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const { mode, uid } = lstatSync(path);
  if (!lstatSync(path).isDirectory() || uid !== process.getuid?.() || (mode & 0o077) !== 0)
    throw new Error(`${path} must be a directory that belongs to this user and is closed to all others`);
}

interface ListenOptions {
  readonly path: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly connected: (connection: Connection) => void;
}

/** Accepts connections of permitted users. Throws if it cannot listen. */
export function listenForPeers({ path, clock, log, connected }: ListenOptions): Disposable {
  ensurePrivateFolder(dirname(path));
  const listening = listenAt(path);
  const exitHook = shutDownAtExit(listening);
  const connections = new Set<Connection>();
  let isOpen = true;

  function admit(fd: number): void {
    for (const connection of connections) if (!connection.isOpen) connections.delete(connection);
    const peer = peerCredentials(fd);
    if (isTrusted(peer) && connections.size < maxConnections) {
      const connection = createConnection(fd, clock);
      connections.add(connection);
      connected(connection);
    } else {
      log.warn('refused a connection', { ...peer, connections: connections.size });
      closeSync(fd);
    }
  }

  async function listen(): Promise<void> {
    for (let fd = await acceptConnection(listening); fd !== undefined; fd = await acceptConnection(listening))
      admit(fd);
    exitHook[Symbol.dispose]();
    closeSync(listening);
  }
  void listen();

  return {
    [Symbol.dispose]: () => {
      // The descriptor number may have been reused by a second call.
      if (isOpen) shutDown(listening);
      isOpen = false;
    },
  };
}
