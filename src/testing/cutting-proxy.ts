import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';
import { joinSockets, onRecords, procedureOf, statusOf } from './rpc-records.ts';

/** A proxy between the NFS client and a server. It can lose replies, hang and go down. It ends with the test. */
export interface CuttingProxy {
  readonly host: string;
  readonly port: number;
  /** Forwards the next call of that NFS procedure, and closes the connection instead of forwarding the reply. */
  cutReplyTo(procedure: number): void;
  /**
   * Like `cutReplyTo`, but keeps the connection open and never forwards the reply. Resolves when the server has
   * replied.
   */
  holdReplyTo(procedure: number): Promise<void>;
  /** The NFS statuses of all replies to the cut call. The first one is the lost reply. */
  readonly statuses: readonly number[];
  /** The number of accepted connections. */
  readonly connections: number;
  /** Accepts bytes but forwards none, like a network with an unplugged cable. */
  stall(): void;
  /** Like `stall`, but only for the open connections, like a firewall that lost its state. New connections work. */
  stallOpen(): void;
  /** Refuses new connections and closes the open ones. */
  down(): Promise<void>;
  up(): Promise<void>;
}

export async function startProxy(
  to: { readonly host: string; readonly port: number },
  host = '127.0.0.1',
): Promise<CuttingProxy> {
  const sockets = new Set<Socket>();
  const statuses: number[] = [];
  let cutting: number | undefined;
  let watched: number | undefined;
  /** Called when the proxy holds a reply back. */
  let held: (() => void) | undefined;
  let isStalled = false;
  let stalledUpTo = 0;
  let connections = 0;

  function onClient(client: Socket): void {
    const number = ++connections;
    const dropsBytes = (): boolean => isStalled || number <= stalledUpTo;
    const server = connect(to);
    joinSockets(sockets, client, server);
    onRecords(client, (call) => {
      if (dropsBytes()) return;
      if (cutting === procedureOf(call)) {
        cutting = undefined;
        watched = call.xid;
      }
      server.write(call.bytes);
    });
    onRecords(server, (reply) => {
      if (dropsBytes()) return;
      if (reply.xid === watched) statuses.push(statusOf(reply));
      if (reply.xid !== watched || statuses.length > 1) client.write(reply.bytes);
      else if (held === undefined) client.destroy();
      else held();
    });
  }

  let listener: Server;
  let port = 0;
  const up = async (): Promise<void> => {
    isStalled = false;
    listener = createServer(onClient).listen(port, host);
    await once(listener, 'listening');
    ({ port } = listener.address() as AddressInfo);
  };
  const down = async (): Promise<void> => {
    const closed = once(listener, 'close');
    listener.close();
    for (const socket of sockets) socket.destroy();
    await closed;
  };
  await up();
  onTestFinished(() => {
    listener.close();
    for (const socket of sockets) socket.destroy();
  });
  const cutReplyTo = (procedure: number): void => {
    cutting = procedure;
    statuses.length = 0;
    watched = undefined;
    held = undefined;
  };
  return {
    host,
    statuses,
    up,
    down,
    cutReplyTo,
    get port() {
      return port;
    },
    get connections() {
      return connections;
    },
    holdReplyTo: (procedure) => {
      cutReplyTo(procedure);
      const { promise, resolve } = Promise.withResolvers<void>();
      held = resolve;
      return promise;
    },
    stall: () => {
      isStalled = true;
    },
    stallOpen: () => {
      stalledUpTo = connections;
    },
  };
}
