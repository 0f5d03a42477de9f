import { closeSync, lstatSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { accepted, listenAt, shutDown } from '#base/linux/descriptors.ts';
import type { Log } from '#base/log.ts';
import { type Connection, createConnection } from './connection.ts';
import { isTrusted, peerCredentials, shutDownAtExit } from './system-calls.ts';

/** Each keeps a thread: whoever starts a keeper gives it a few more (UV_THREADPOOL_SIZE). */
const maxConnections = 12;
export const threadsOfKeeper = 24;

/** Throws unless the folder is there, or can be made, for nobody but this user. */
export function ownFolder(path: string): void {
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const { mode, uid } = lstatSync(path);
  if (!lstatSync(path).isDirectory() || uid !== process.getuid?.() || (mode & 0o077) !== 0)
    throw new Error(`${path} must be a folder that belongs to this user and that nobody else may enter`);
}

interface ListenOptions {
  readonly path: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly connected: (connection: Connection) => void;
}

/** Lets those in who may. Throws when it cannot listen. */
export function listenForPeers({ path, clock, log, connected }: ListenOptions): Disposable {
  ownFolder(dirname(path));
  const listening = listenAt(path);
  const registered = shutDownAtExit(listening);
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
      log.warn('somebody was turned away', { ...peer, connections: connections.size });
      closeSync(fd);
    }
  }

  async function listen(): Promise<void> {
    for (let fd = await accepted(listening); fd !== undefined; fd = await accepted(listening)) admit(fd);
    registered[Symbol.dispose]();
    closeSync(listening);
  }
  void listen();

  return {
    [Symbol.dispose]: () => {
      // Its number may be another's by the second time.
      if (isOpen) shutDown(listening);
      isOpen = false;
    },
  };
}
