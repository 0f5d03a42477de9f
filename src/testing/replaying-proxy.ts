import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { onRecords, procedureOf, type RpcRecord } from './rpc-records.ts';

/**
 * A proxy between an NFS client and a server on loopback. It keeps the client's port, as a router does: the server sees
 * each connection come from the same port of another loopback address. It decides when the server receives a call, and
 * whether the client receives the reply. It needs no test runner, so a virtual machine can run it.
 */
export interface ReplayingProxy extends Disposable {
  readonly host: string;
  readonly port: number;
  /** The client's ports, one for each connection, in order. */
  readonly ports: readonly number[];
  /** How often the proxy has sent a call of this procedure to the server. */
  deliveries(procedure: number): number;
  /** Keeps the next call of this procedure from the server, and cuts the client's connection. */
  holdCall(procedure: number): HeldCall;
  /**
   * Lets the server execute the next call of these procedures, and cuts the client's connection instead of forwarding
   * the reply.
   */
  loseReply(...procedures: readonly number[]): Promise<void>;
  /**
   * Lets the server execute the next call of these procedures. After that, the proxy forwards nothing in either
   * direction.
   */
  stallReply(...procedures: readonly number[]): Promise<void>;
  /** Refuses new connections, until `up`. */
  down(): Promise<void>;
  up(): Promise<void>;
}

export interface HeldCall {
  /** Resolves when the proxy has the call. */
  readonly held: Promise<void>;
  /**
   * Sends the call to the server on the client's current connection, and repeats it until the server replies: a server
   * drops a copy while it executes another one, and nfs-ganesha also drops it for a moment after its reply.
   */
  release(): Promise<void>;
}

export type Disturbance = 'none' | 'cut before the call' | 'lose the reply' | 'run the first copy late';

export interface ReplayingProxyOptions {
  /** The address that the client connects to. */
  readonly host?: string;
  /** Undefined: any free port. */
  readonly port?: number;
  /** The source address of the proxy's connections to the server. */
  readonly source?: string;
  /** Decides what happens to each call. */
  readonly disturb?: (call: RpcRecord) => Disturbance;
  /** How long after the reply to the second copy the proxy sends the late first copy. */
  readonly lateMs?: () => number;
}

interface ConnectionPair {
  readonly client: Socket;
  readonly server: Socket;
}

interface Target {
  readonly host: string;
  readonly port: number;
}

const bindLimitMs = 20_000;
const deliverAgainMs = 500;

export async function startReplayingProxy(to: Target, options: ReplayingProxyOptions = {}): Promise<ReplayingProxy> {
  const { host = '127.0.0.1', source = '127.0.0.2', disturb = () => 'none', lateMs = () => 0 } = options;
  const pairs = new Set<ConnectionPair>();
  const stalled = new Set<Socket>();
  const timers = new Set<NodeJS.Timeout>();
  const ports: number[] = [];
  const counts = new Map<number, number>();
  const listener = createServer((client) => void onClient(client));
  let port = options.port ?? 0;
  let isStalled = false;
  let holding: { readonly procedure: number; readonly onHeld: (call: RpcRecord) => void } | undefined;
  let losing:
    | { readonly procedures: readonly number[]; readonly stalls: boolean; readonly lost: () => void }
    | undefined;
  /** By xid. Called once, with the reply. If it returns true, the client receives the reply. */
  const replyHandlers = new Map<number, (line: ConnectionPair) => boolean>();

  function fromClient(line: ConnectionPair, call: RpcRecord): void {
    if (isStalled) return;
    const procedure = procedureOf(call);
    if (holding?.procedure === procedure) {
      const { onHeld } = holding;
      holding = undefined;
      cut(line);
      onHeld(call);
      return;
    }
    if (losing?.procedures.includes(procedure)) {
      const { stalls, lost } = losing;
      losing = undefined;
      replyHandlers.set(call.xid, (current) => {
        if (stalls) isStalled = true;
        else cut(current);
        lost();
        return false;
      });
    } else if (applyDisturbance(line, call)) return;
    pass(line, call);
  }

  /** Returns true if the server does not receive the call now. */
  function applyDisturbance(line: ConnectionPair, call: RpcRecord): boolean {
    // The second copy of a call whose first copy runs late passes undisturbed: its reply has a handler.
    const kind = replyHandlers.has(call.xid) ? 'none' : disturb(call);
    if (kind === 'none') return false;
    if (kind === 'lose the reply') {
      replyHandlers.set(call.xid, (current) => {
        cut(current);
        return false;
      });
      return false;
    }
    if (kind === 'run the first copy late') replyHandlers.set(call.xid, () => replayLater(call));
    cut(line);
    return true;
  }

  function replayLater(call: RpcRecord): true {
    const timer = setTimeout(() => {
      timers.delete(timer);
      const [line] = pairs;
      if (line !== undefined) pass(line, call);
    }, lateMs());
    timers.add(timer);
    return true;
  }

  function pass({ server }: ConnectionPair, call: RpcRecord): void {
    const procedure = procedureOf(call);
    counts.set(procedure, (counts.get(procedure) ?? 0) + 1);
    server.write(call.bytes);
  }

  function fromServer(line: ConnectionPair, reply: RpcRecord): void {
    if (isStalled) return;
    const onReply = replyHandlers.get(reply.xid);
    replyHandlers.delete(reply.xid);
    if (onReply?.(line) !== false) line.client.write(reply.bytes);
  }

  /** With a reset, so that the port is free at once for the next connection from it. */
  function cut({ client, server }: ConnectionPair): void {
    client.destroy();
    server.resetAndDestroy();
  }

  function cutAll(): void {
    listener.close();
    for (const socket of stalled) socket.destroy();
    for (const line of pairs) cut(line);
  }

  async function onClient(client: Socket): Promise<void> {
    client.on('error', () => undefined).pause();
    const from = client.remotePort ?? 0;
    ports.push(from);
    if (isStalled) return void stalled.add(client);
    const server = await connectFrom({ address: source, port: from }, to).catch(() => undefined);
    if (server === undefined || client.destroyed) {
      client.destroy();
      server?.resetAndDestroy();
      return;
    }
    const line = { client, server };
    pairs.add(line);
    client.setNoDelay(true);
    for (const socket of [client, server]) socket.on('close', () => cut(line)).on('close', () => pairs.delete(line));
    onRecords(client, (call) => fromClient(line, call));
    onRecords(server, (reply) => fromServer(line, reply));
    client.resume();
  }

  const up = async (): Promise<void> => {
    listener.listen(port, host);
    await once(listener, 'listening');
    ({ port } = listener.address() as AddressInfo);
  };
  await up();

  const lose = (procedures: readonly number[], stalls: boolean): Promise<void> => {
    const { promise, resolve } = Promise.withResolvers<void>();
    losing = { procedures, stalls, lost: resolve };
    return promise;
  };
  return {
    host,
    ports,
    up,
    get port() {
      return port;
    },
    deliveries: (procedure) => counts.get(procedure) ?? 0,
    holdCall: (procedure) => {
      const { promise, resolve } = Promise.withResolvers<RpcRecord>();
      holding = { procedure, onHeld: resolve };
      return {
        held: promise.then(() => undefined),
        release: async () => {
          const call = await promise;
          const { promise: answered, resolve: onAnswer } = Promise.withResolvers<void>();
          replyHandlers.set(call.xid, () => {
            onAnswer();
            return true;
          });
          const deliver = (): void => {
            const [line] = pairs;
            if (line !== undefined) pass(line, call);
          };
          deliver();
          const timer = setInterval(deliver, deliverAgainMs);
          timers.add(timer);
          await answered;
          clearInterval(timer);
          timers.delete(timer);
        },
      };
    },
    loseReply: (...procedures) => lose(procedures, false),
    stallReply: (...procedures) => lose(procedures, true),
    down: async () => {
      const closed = once(listener, 'close');
      cutAll();
      await closed;
    },
    [Symbol.dispose]: () => {
      for (const timer of timers) clearTimeout(timer);
      cutAll();
    },
  };
}

/**
 * Connects from that address and port. Retries, because the port of a connection that was just reset is free only after
 * a moment.
 */
async function connectFrom(from: { readonly address: string; readonly port: number }, to: Target): Promise<Socket> {
  const until = Date.now() + bindLimitMs;
  for (;;) {
    const socket = connect({ ...to, localAddress: from.address, localPort: from.port, noDelay: true });
    try {
      await once(socket, 'connect');
      return socket.on('error', () => undefined);
    } catch (cause) {
      if (Date.now() > until) throw cause;
      await delay(5);
    }
  }
}
