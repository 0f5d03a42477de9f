import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createNfsClient, type NfsClient } from '#wire/nfs3/client.ts';
import { nfsProgram, nfsVersion } from '#wire/nfs3/structures.ts';
import { createRpcClient, type RpcClient, type RpcClientOptions } from '#wire/rpc/client.ts';
import { createRpcServer, type ServedProcedure } from '#wire/rpc/server.ts';
import { user } from './nfs-export.ts';

export interface FakeNfs {
  readonly port: number;
  readonly rpc: RpcClient;
  readonly nfs: NfsClient;
}

function clientOf(port: number, options: Partial<RpcClientOptions>): FakeNfs {
  const about = { clock: systemClock(), addresses: [{ host: '127.0.0.1', port }] as const, identity: user(0) };
  const rpc = createRpcClient({ ...about, ...options });
  onTestFinished(() => rpc.close());
  return { port, rpc, nfs: createNfsClient(rpc, systemClock()) };
}

/** A server with a correct RPC layer. The test defines the results of its NFS procedures, by procedure number. */
export async function startFakeNfs(
  procedures: Readonly<Record<number, ServedProcedure['handle']>>,
  options: Partial<RpcClientOptions> = {},
): Promise<FakeNfs> {
  const served = Object.entries(procedures).map(
    ([number, handle]) => [Number(number), { name: number, handle }] as const,
  );
  const server = createRpcServer({
    programs: [{ number: nfsProgram, version: nfsVersion, procedures: new Map(served) }],
  });
  const sockets = new Set<Socket>();
  server.on('connection', (socket) => sockets.add(socket));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return clientOf((server.address() as AddressInfo).port, options);
}

export interface RawServer extends FakeNfs {
  /** The number of accepted connections. */
  readonly connections: number;
  /** Called for each new connection. */
  onConnection: (socket: Socket) => void;
}

/** A server whose every byte the test defines. */
export async function startRawServer(
  onConnection: (socket: Socket) => void,
  options: Partial<RpcClientOptions> = {},
): Promise<RawServer> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    raw.onConnection(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const raw = {
    ...clientOf((server.address() as AddressInfo).port, options),
    onConnection,
    get connections() {
      return sockets.size;
    },
  };
  return raw;
}
