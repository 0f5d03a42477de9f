import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { onTestFinished } from 'vitest';
import { onRecords, procedureOf, type RpcRecord } from './rpc-records.ts';

/**
 * Between an NFS client and a server on loopback. It keeps the client's port, as a network does: the server sees each connection come
 * from that port of another loopback address. It decides when the server gets a call, and whether the client gets the reply. It
 * ends with the test.
 */
export interface ReplayingProxy {
  readonly host: string;
  readonly port: number;
  /** Ports of the client, one for each connection, in order. */
  readonly ports: readonly number[];
  /** How often the server got a call of this procedure. */
  passed(procedure: number): number;
  /** The next call of this procedure does not reach the server yet; the client's connection is cut instead. */
  holdCall(procedure: number): HeldCall;
  /** The server does the next call of this procedure; the client's connection is cut instead of the reply. */
  loseReply(procedure: number): Promise<void>;
  /** New connections are refused, until `up`. */
  down(): Promise<void>;
  up(): Promise<void>;
}

export interface HeldCall {
  /** The proxy has it. */
  readonly held: Promise<void>;
  /** The server gets it now, on the client's present connection; resolves when the server has answered. */
  release(): Promise<void>;
}

interface Line {
  readonly client: Socket;
  readonly server: Socket;
}

const ownAddress = '127.0.0.2';
const bindPatienceMs = 20_000;

export async function startReplayingProxy(to: {
  readonly host: string;
  readonly port: number;
}): Promise<ReplayingProxy> {
  const lines = new Set<Line>();
  const ports: number[] = [];
  const counts = new Map<number, number>();
  const listener = createServer((client) => void carry(client));
  let port = 0;
  let holding: { readonly procedure: number; readonly take: (call: RpcRecord) => void } | undefined;
  let losing: { readonly procedure: number; xid: number | undefined; readonly lost: () => void } | undefined;
  const awaited = new Map<number, () => void>();

  function fromClient(line: Line, call: RpcRecord): void {
    const procedure = procedureOf(call);
    if (holding?.procedure === procedure) {
      const { take } = holding;
      holding = undefined;
      cut(line);
      take(call);
      return;
    }
    if (losing?.procedure === procedure && losing.xid === undefined) losing.xid = call.xid;
    pass(line, call);
  }

  function pass({ server }: Line, call: RpcRecord): void {
    const procedure = procedureOf(call);
    counts.set(procedure, (counts.get(procedure) ?? 0) + 1);
    server.write(call.bytes);
  }

  function fromServer(line: Line, reply: RpcRecord): void {
    const isLost = losing?.xid === reply.xid;
    if (isLost) {
      cut(line);
      losing?.lost();
      losing = undefined;
      return;
    }
    line.client.write(reply.bytes);
    awaited.get(reply.xid)?.();
    awaited.delete(reply.xid);
  }

  /** The port must be free at once for the next connection from it. */
  function cut({ client, server }: Line): void {
    client.destroy();
    server.resetAndDestroy();
  }

  async function carry(client: Socket): Promise<void> {
    client.on('error', () => undefined).pause();
    const from = client.remotePort ?? 0;
    ports.push(from);
    const server = await connectFrom(from, to);
    const line = { client, server };
    lines.add(line);
    client.setNoDelay(true);
    for (const socket of [client, server]) socket.on('close', () => cut(line)).on('close', () => lines.delete(line));
    onRecords(client, (call) => fromClient(line, call));
    onRecords(server, (reply) => fromServer(line, reply));
    client.resume();
  }

  const up = async (): Promise<void> => {
    listener.listen(port, '127.0.0.1');
    await once(listener, 'listening');
    ({ port } = listener.address() as AddressInfo);
  };
  await up();
  onTestFinished(() => {
    listener.close();
    for (const line of lines) cut(line);
  });

  return {
    host: '127.0.0.1',
    ports,
    up,
    get port() {
      return port;
    },
    passed: (procedure) => counts.get(procedure) ?? 0,
    holdCall: (procedure) => {
      const { promise, resolve } = Promise.withResolvers<RpcRecord>();
      holding = { procedure, take: resolve };
      return {
        held: promise.then(() => undefined),
        release: async () => {
          const call = await promise;
          const [line] = lines;
          if (line === undefined) throw new Error('the client is not connected');
          const { promise: answered, resolve: onAnswer } = Promise.withResolvers<void>();
          awaited.set(call.xid, onAnswer);
          pass(line, call);
          await answered;
        },
      };
    },
    loseReply: (procedure) => {
      const { promise, resolve } = Promise.withResolvers<void>();
      losing = { procedure, xid: undefined, lost: resolve };
      return promise;
    },
    down: async () => {
      const closed = once(listener, 'close');
      listener.close();
      for (const line of lines) cut(line);
      await closed;
    },
  };
}

/** The port of a connection that was just reset is free in a moment. */
async function connectFrom(localPort: number, to: { readonly host: string; readonly port: number }): Promise<Socket> {
  const until = Date.now() + bindPatienceMs;
  for (;;) {
    const socket = connect({ ...to, localAddress: ownAddress, localPort, noDelay: true });
    try {
      await once(socket, 'connect');
      return socket.on('error', () => undefined);
    } catch (cause) {
      if (Date.now() > until) throw cause;
      await delay(5);
    }
  }
}
