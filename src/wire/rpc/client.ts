import type { ConnectionOptions } from 'node:tls';
import type { Clock } from '#base/clock.ts';
import { type Address, type Connection, dial, type Handlers, shown } from './connection.ts';
import { RpcError } from './errors.ts';
import { type Call, createLane, type Lane } from './lane.ts';
import { credential, type Identity } from './message.ts';
import type { Procedure } from './procedure.ts';

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  readonly deadlineMs?: number | undefined;
}

export interface RpcClient extends Disposable {
  call<A, R>(procedure: Procedure<A, R>, args: A, options?: CallOptions): Promise<R>;
  /** Calls that have no reply yet. */
  readonly pending: number;
  /** The address that is tried first. */
  readonly address: Address;
  close(): void;
}

export interface RpcClientOptions {
  readonly clock: Clock;
  /** Several addresses of one server: where one does not answer, the next is tried. */
  readonly addresses: readonly [Address, ...Address[]];
  /** How many connections share the calls. */
  readonly connections?: number;
  /** Undefined: nobody (AUTH_NONE). */
  readonly identity?: Identity | undefined;
  /** RFC 9289. The program whose NULL procedure is asked for it. */
  readonly tls?:
    | { readonly options: ConnectionOptions; readonly program: number; readonly version: number }
    | undefined;
  /** Gives the local port of the next connection, where servers want a privileged one. */
  readonly localPort?: (() => number) | undefined;
  /** For a call that names none. */
  readonly deadlineMs?: number;
  /** For one attempt to connect. */
  readonly dialMs?: number;
  /** How often all addresses are tried before the calls fail that were never sent. Others are tried until their deadline. */
  readonly dialRounds?: number;
  /** With several addresses: one that has not sent anything for so long, while calls wait, is given up for the next. */
  readonly stallMs?: number;
  /** The longest reply that is taken. */
  readonly maxRecord?: number;
  /** More calls than these wait for a place. */
  readonly maxInFlight?: number;
}

/** Deadlines are looked at this often, by one timer: one for each call would cost more than the call. */
const sweepMs = 50;

export function createRpcClient(options: RpcClientOptions): RpcClient {
  const { clock, addresses } = options;
  const { deadlineMs = 30_000, stallMs = 10_000, maxInFlight = 1024 } = options;
  const closing = new AbortController();
  const dialing = createDialing(options, closing.signal);
  const waiting = new Set<Call>();
  let nextXid = Math.floor(Math.random() * 0xffff_ffff);
  let turn = 0;
  let inFlight = 0;
  let sweeping: Disposable | undefined;

  const lanes = Array.from({ length: options.connections ?? 1 }, () =>
    createLane({
      ...{ clock, closing: closing.signal, connect: dialing.connect, dialRounds: options.dialRounds ?? 2 },
      credential: credential(options.identity),
      onEnded: () => {
        inFlight--;
        const [next] = waiting;
        if (next === undefined) return;
        waiting.delete(next);
        start(next);
      },
    }),
  );

  function start(call: Call): void {
    inFlight++;
    (lanes[turn++ % lanes.length] as Lane).start(call);
    sweeping ??= clock.after(sweepMs, sweep);
  }

  function abandon(call: Call, error: RpcError): void {
    waiting.delete(call);
    for (const lane of lanes) lane.drop(call);
    call.reject(error);
  }

  function sweep(): void {
    sweeping = undefined;
    const now = clock.elapsed();
    for (const call of calls(lanes, waiting)) if (call.expires <= now) abandon(call, late(call, addresses));
    for (const lane of addresses.length > 1 ? lanes : []) {
      if (now - (lane.silentSince ?? now) <= stallMs) continue;
      dialing.skip();
      lane.reconnect();
    }
    if (inFlight > 0) sweeping = clock.after(sweepMs, sweep);
  }

  const close = (): void => {
    closing.abort(closed());
    sweeping?.[Symbol.dispose]();
    for (const call of calls(lanes, waiting)) abandon(call, closed());
    for (const lane of lanes) lane.close();
  };

  return {
    call: (procedure, args, { signal, deadlineMs: limit = deadlineMs } = {}) => {
      if (closing.signal.aborted) return Promise.reject(closed());
      if (signal?.aborted === true) return Promise.reject(canceled(procedure.name, false, signal));
      const { promise, resolve, reject } = Promise.withResolvers<never>();
      nextXid = (nextXid + 1) >>> 0;
      const call: Call = {
        xid: nextXid,
        procedure: procedure as Procedure<unknown, unknown>,
        args,
        resolve: resolve as (value: unknown) => void,
        reject,
        expires: clock.elapsed() + limit,
        sent: false,
        resent: false,
      };
      if (inFlight >= maxInFlight) waiting.add(call);
      else start(call);
      if (signal === undefined) return promise;
      const stop = (): void => abandon(call, canceled(procedure.name, call.sent, signal));
      signal.addEventListener('abort', stop, { once: true });
      return promise.finally(() => signal.removeEventListener('abort', stop));
    },
    get pending() {
      return inFlight + waiting.size;
    },
    get address() {
      return dialing.first();
    },
    close,
    [Symbol.dispose]: close,
  };
}

const calls = (lanes: readonly Lane[], waiting: ReadonlySet<Call>): readonly Call[] => [
  ...waiting,
  ...lanes.flatMap((lane) => [...lane.pending.values()]),
];

interface Dialing {
  first(): Address;
  /** The first address does not answer. */
  skip(): void;
  connect(handlers: Handlers): Promise<Connection>;
}

/** Which of a server's addresses to try, for all lanes together. */
function createDialing(options: RpcClientOptions, closing: AbortSignal): Dialing {
  const { clock, addresses, tls, localPort, dialMs = 5_000, maxRecord = 2 * 1024 * 1024 } = options;
  let preferred = 0;
  const from = (i: number): Address => addresses[(preferred + i) % addresses.length] as Address;
  return {
    first: () => from(0),
    skip: () => {
      preferred = (preferred + 1) % addresses.length;
    },
    connect: async (handlers) => {
      let failure: unknown;
      for (let i = 0; i < addresses.length; i++) {
        using limit = clock.deadline(dialMs, closing);
        const address = from(i);
        try {
          const about = { address, maxRecord, tls, localPort: localPort?.(), signal: limit.signal };
          const connection = await dial({ ...about, ...handlers });
          preferred = addresses.indexOf(address);
          return connection;
        } catch (cause) {
          failure = cause;
        }
      }
      throw failure;
    },
  };
}

const late = ({ procedure, sent }: Call, addresses: readonly Address[]): RpcError =>
  new RpcError(`${procedure.name}: no reply in time from ${addresses.map(shown).join(', ')}`, {
    failure: 'deadline',
    maybeDone: sent,
  });

const closed = (): RpcError => new RpcError('the connection was closed', { failure: 'closed' });

const canceled = (name: string, sent: boolean, signal: AbortSignal): RpcError =>
  new RpcError(`${name}: cancelled`, { failure: 'canceled', maybeDone: sent, cause: signal.reason });
