import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';

/** The fault of a connection. A client first requests TLS, then does the handshake. */
export type ConnectionFault =
  | 'passes'
  | 'closes'
  | 'resets'
  | 'says nothing'
  | 'closes in the handshake'
  | 'resets in the handshake'
  | 'says nothing in the handshake';

/** A proxy in front of a server, for any protocol. It ends with the test. */
export interface FaultProxy {
  readonly host: string;
  readonly port: number;
  /** The fault of new connections. */
  fault: ConnectionFault;
  /** The number of accepted connections. */
  readonly connections: number;
  /** Closes the open connections. */
  cut(): void;
  /** Forwards new connections to another server. */
  leadTo(server: Address): void;
}

interface Address {
  readonly host: string;
  readonly port: number;
}

export async function startFaultProxy(first: Address): Promise<FaultProxy> {
  const open = new Set<Socket>();
  let to = first;
  let connections = 0;

  function isLeft(socket: Socket, fault: ConnectionFault): boolean {
    if (fault.startsWith('closes')) socket.destroy();
    else if (fault.startsWith('resets')) socket.resetAndDestroy();
    return fault !== 'passes';
  }

  function carry(client: Socket): void {
    connections++;
    const { fault } = door;
    const server = connect(to);
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const) {
      open.add(one);
      one
        .on('error', () => undefined)
        .on('close', () => {
          open.delete(one);
          other.destroy();
        });
    }
    let said = 0;
    client.on('data', (chunk) => {
      said++;
      if (!(fault.endsWith('in the handshake') && said === 1) && isLeft(client, fault)) return;
      server.write(chunk);
    });
    server.on('data', (chunk) => client.write(chunk));
  }

  const listener = createServer({ noDelay: true }, carry).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const door = {
    host: '127.0.0.1',
    port: (listener.address() as AddressInfo).port,
    fault: 'passes' as ConnectionFault,
    get connections() {
      return connections;
    },
    leadTo: ({ host, port }: Address) => {
      to = { host, port };
    },
    cut: () => {
      for (const socket of open) socket.destroy();
    },
  };
  onTestFinished(() => {
    listener.close();
    door.cut();
  });
  return door;
}
