import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import type { Log } from '#base/log.ts';
import { type Connection, createConnection } from './connection.ts';
import { type HeldDescriptors, sendHeldDescriptors } from './held-descriptors.ts';
import type { Message } from './protocol.ts';
import { isTrusted, openPidfd, peerCredentials } from './system-calls.ts';

/**
 * A data path's connections to keepers: usually one, two during a handover, none after its keeper died. Without a
 * keeper it keeps serving and looks for a new one.
 */
export interface KeeperConnections {
  /** Starts with the keeper that started this process. */
  begin(connection: Connection): void;
  /** Sends to every keeper. */
  broadcast(message: Message, descriptors?: readonly number[]): void;
  report(text: string): void;
  /** Transfers everything to another keeper. */
  transferTo(path: string): void;
  transferAccepted(connection: Connection): void;
  /** No keeper is connected. */
  readonly isDisconnected: boolean;
  close(): void;
}

interface KeeperConnectionsOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly signal: AbortSignal;
  /** The path of the keeper's socket. */
  readonly path: () => string;
  /** Undefined: this process serves nothing, so it does not look for a keeper. */
  readonly held: () => HeldDescriptors | undefined;
  readonly handleMessages: (connection: Connection, closed: (why: string) => void) => void;
  /** The keeper is gone and nothing is served. */
  readonly abandoned: () => void;
}

const transferTimeoutMs = 5_000;
const retryDelayMs = { shortest: 50, longest: 500 } as const;
/** For a data path without mounts: its keeper may be about to be restarted. */
const maxIdleMs = 60_000;

export function createKeeperConnections(options: KeeperConnectionsOptions): KeeperConnections {
  const { clock, log, version, signal, path, held, handleMessages, abandoned } = options;
  const connections = new Set<Connection>();
  const unanswered = new Map<Connection, Disposable>();
  let isReconnecting = false;
  let isOver = false;
  let lastReport = '';

  function addConnection(connection: Connection): void {
    connections.add(connection);
    handleMessages(connection, (why) => handleDisconnect(connection, why));
  }

  function handleDisconnect(connection: Connection, why: string): void {
    connections.delete(connection);
    unanswered.get(connection)?.[Symbol.dispose]();
    unanswered.delete(connection);
    if (isOver || connections.size > 0) return;
    if (held() === undefined) abandoned();
    else {
      log.warn('the keeper is gone', { why });
      void reconnect();
    }
  }

  /** Retries until a keeper accepts the transfer. */
  async function reconnect(): Promise<void> {
    if (isReconnecting) return;
    isReconnecting = true;
    let lastBusyAt = clock.elapsed();
    for (
      let ms: number = retryDelayMs.shortest;
      !isOver && !signal.aborted && connections.size === 0;
      ms = Math.min(retryDelayMs.longest, ms + 10)
    ) {
      await clock.sleep(ms, signal).catch(() => undefined);
      if ((held()?.mounts.size ?? 0) > 0) lastBusyAt = clock.elapsed();
      if (clock.elapsed() - lastBusyAt > maxIdleMs) return abandoned();
      if (!isOver && connections.size === 0) transferTo(path());
    }
    isReconnecting = false;
  }

  function transferTo(socketPath: string): void {
    const everything = held();
    const connection = everything === undefined ? undefined : tryConnect(socketPath);
    if (everything === undefined || connection === undefined) return;
    const ownPidfd = openPidfd(process.pid);
    connection.send({ kind: 'hello', role: 'data path', pid: process.pid, version }, [ownPidfd]);
    closeSync(ownPidfd);
    sendHeldDescriptors(connection, everything, 'everything');
    unanswered.set(
      connection,
      clock.after(transferTimeoutMs, () => connection.close()),
    );
    addConnection(connection);
  }

  function tryConnect(socketPath: string): Connection | undefined {
    try {
      const fd = connectTo(socketPath);
      if (isTrusted(peerCredentials(fd))) return createConnection(fd, clock);
      closeSync(fd);
    } catch {
      // No keeper is listening yet.
    }
    return undefined;
  }

  const broadcast = (message: Message, descriptors: readonly number[] = []): void => {
    for (const connection of connections) connection.send(message, descriptors);
  };

  return {
    transferTo,
    broadcast,
    get isDisconnected() {
      return connections.size === 0;
    },
    begin: (connection) => {
      const ownPidfd = openPidfd(process.pid);
      connection.send({ kind: 'hello', role: 'data path', pid: process.pid, version }, [ownPidfd]);
      closeSync(ownPidfd);
      addConnection(connection);
    },
    report: (text) => {
      lastReport = text;
      broadcast({ kind: 'report', text });
    },
    transferAccepted: (connection) => {
      unanswered.get(connection)?.[Symbol.dispose]();
      unanswered.delete(connection);
      if (lastReport !== '') connection.send({ kind: 'report', text: lastReport });
    },
    close: () => {
      isOver = true;
      for (const connection of connections) connection.close();
    },
  };
}
