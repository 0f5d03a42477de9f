import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';
import { joinSockets, onRecords, procedureOf, statusOf } from './rpc-records.ts';

/** Between our client and a server: it can lose replies, stand still, and be gone. It ends with the test. */
export interface CuttingProxy {
  readonly host: string;
  readonly port: number;
  /** Of calls of that procedure of NFS the next one is passed on, and the connection is cut instead of its reply. */
  cutReplyTo(procedure: number): void;
  /** The same, but the connection stays, and the reply never comes. Resolves when the server has given it. */
  holdReplyTo(procedure: number): Promise<void>;
  /** The NFS statuses in the replies to the call that was cut, the lost one first. */
  readonly statuses: readonly number[];
  /** Connections that were taken. */
  readonly connections: number;
  /** Bytes are taken and go nowhere, as on a network that lost its cable. */
  stall(): void;
  /** The same for connections that are open now, as when a firewall has forgotten them. New ones are passed on. */
  stallOpen(): void;
  /** Whoever connects is refused; who is connected is cut off. */
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
  /** Told of the reply that is held back. */
  let held: (() => void) | undefined;
  let isStalled = false;
  let stalledUpTo = 0;
  let connections = 0;

  function carry(client: Socket): void {
    const number = ++connections;
    const goesNowhere = (): boolean => isStalled || number <= stalledUpTo;
    const server = connect(to);
    joinSockets(sockets, client, server);
    onRecords(client, (call) => {
      if (goesNowhere()) return;
      if (cutting === procedureOf(call)) {
        cutting = undefined;
        watched = call.xid;
      }
      server.write(call.bytes);
    });
    onRecords(server, (reply) => {
      if (goesNowhere()) return;
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
    listener = createServer(carry).listen(port, host);
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
