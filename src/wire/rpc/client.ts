import type { Clock } from '#base/clock.ts';
import { createWatches } from './abort-listeners.ts';
import {
  type Address,
  type Connect,
  type Connection,
  type DialOptions,
  dial,
  type Handlers,
  shown,
} from './connection.ts';
import { isPortTaken, isSystemError, RpcError } from './errors.ts';
import { credential, type Identity } from './message.ts';
import type { Procedure } from './procedure.ts';
import type { TlsWish } from './tls.ts';
import { type Call, createLane, type Lane, type LastConnection } from './transport.ts';
import { createVerifiers } from './verifiers.ts';

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  readonly deadlineMs?: number | undefined;
  /** On behalf of somebody else than the client was made for: what `credential` of message.ts gives. */
  readonly credential?: Buffer | undefined;
  /**
   * For calls of which a second execution destroys what others made since. Asked before the call is resent, if it is not known
   * whether the server restarted. False: it was executed, or somebody else went on. Undefined: nobody can tell.
   */
  readonly isUndone?: ((on: CallOptions) => Promise<boolean | undefined>) | undefined;
  /** On this connection, and without waiting for a place: a question about a call that is pending there. */
  readonly lane?: number | undefined;
}

/** Gives the result all the same, or throws. `since`: when the call was made, by the clock's elapsed time. */
export type Recover<R> = (cause: unknown, since: number) => R | Promise<R>;

export interface RpcClient extends Disposable {
  /** `recover` is asked when it fails: what a `catch` behind it would do, without another promise for every call. */
  call<A, R>(procedure: Procedure<A, R>, args: A, options?: CallOptions, recover?: Recover<R>): Promise<R>;
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
  readonly tls?: TlsWish | undefined;
  /** Gives the local port of the next connection, where servers want a privileged one. */
  readonly localPort?: (() => number) | undefined;
  /** Gives each TCP connection, where they must not simply start here. */
  readonly connect?: Connect | undefined;
  /** Each TCP connection, when it is there and nothing was sent on it yet. */
  readonly onOpened?: DialOptions['onOpened'];
  readonly reading?: DialOptions['reading'];
  /** For a call that names none. */
  readonly deadlineMs?: number;
  /** For one attempt to connect. */
  readonly dialMs?: number;
  /** How often all addresses are tried before the calls fail that were never sent. Others are tried until their deadline. */
  readonly dialRounds?: number;
  /**
   * With several addresses: one that has not sent anything for so long, while calls wait, is given up for the next. With
   * one: a connection on which nothing came for so long is made anew when a call has passed its deadline, or when the server
   * answers on another and still not there.
   */
  readonly stallMs?: number;
  /** The longest reply that is taken. */
  readonly maxRecord?: number;
  /** More calls than these wait for a place. */
  readonly maxInFlight?: number;
}

/** The engine keeps whole numbers of 31 bits without allocating memory for them. */
const maxXid = 0x7fff_ffff;

/** Deadlines are looked at this often, by one timer: one for each call would cost more than the call. */
const sweepMs = 50;

export function createRpcClient(options: RpcClientOptions): RpcClient {
  const { clock, addresses } = options;
  const { deadlineMs = 30_000, stallMs = 10_000, maxInFlight = 1024 } = options;
  const closing = new AbortController();
  const dialing = createDialing(options, closing.signal);
  const waiting = new Set<Call>();
  const verifiers = createVerifiers();
  let nextXid = Math.floor(Math.random() * maxXid);
  let turn = 0;
  let inFlight = 0;
  let sweeping: Disposable | undefined;

  const lanes = Array.from({ length: options.connections ?? 1 }, (_, index) =>
    createLane({
      clock,
      closing: closing.signal,
      connect: dialing.connect,
      dialRounds: options.dialRounds ?? 2,
      stallMs,
      verifiers,
      credential: credential(options.identity),
      ask: ({ procedure, args, ...how }) => {
        const { promise, resolve, reject } = Promise.withResolvers<unknown>();
        if (closing.signal.aborted) reject(closed());
        else startOn(index, newCall(procedure, args, how, { resolve, reject, isQuestion: true }));
        return promise;
      },
      look: async ({ isUndone, expires }) =>
        await isUndone?.({ lane: index, deadlineMs: Math.max(0, expires - clock.elapsed()) }),
      onEnded: (ended) => {
        inFlight--;
        if (ended.signal !== undefined) watches.remove(ended.signal);
        if (waiting.size > 0) startNext();
      },
    }),
  );

  function startOn(lane: number, call: Call): void {
    inFlight++;
    (lanes[lane] as Lane).start(call);
    sweeping ??= clock.after(sweepMs, sweep);
  }

  const start = (call: Call): void => startOn(turn++ % lanes.length, call);

  function newCall(
    procedure: Procedure<unknown, unknown>,
    args: unknown,
    how: CallOptions | undefined,
    ends: Pick<Call, 'resolve' | 'reject' | 'isQuestion'>,
  ): Call {
    nextXid = (nextXid + 1) & maxXid;
    const since = clock.elapsed();
    return {
      xid: nextXid,
      procedure,
      args,
      resolve: ends.resolve,
      reject: ends.reject,
      signal: how?.signal,
      credential: how?.credential,
      isUndone: how?.isUndone,
      isQuestion: ends.isQuestion,
      since,
      expires: since + (how?.deadlineMs ?? deadlineMs),
      sent: false,
      sentOn: undefined,
      resent: false,
      lends: false,
      next: undefined,
    };
  }

  function startNext(): void {
    const [next] = waiting;
    if (next === undefined) return;
    waiting.delete(next);
    start(next);
  }

  const watches = createWatches((signal) => {
    for (const call of calls(lanes, waiting))
      if (call.signal === signal) abandon(call, canceled(call.procedure.name, call.sent, signal));
  });

  function abandon(call: Call, error: RpcError): void {
    if (waiting.delete(call) && call.signal !== undefined) watches.remove(call.signal);
    for (const lane of lanes) lane.giveUp(call);
    call.reject(error);
  }

  function sweep(): void {
    sweeping = undefined;
    const now = clock.elapsed();
    const silent = lanes.filter((lane) => lane.silence(now) > stallMs);
    // Where there is nowhere else to go, only when it costs no answer that would still be waited for.
    const dead = addresses.length > 1 ? silent : silent.filter((lane) => isAnyLate(lane.pending, now));
    for (const call of calls(lanes, waiting)) if (call.expires <= now) abandon(call, late(call, addresses));
    for (const lane of lanes) lane.repeat(now);
    for (const lane of silent) {
      if (!dead.includes(lane)) {
        lane.doubt(stallMs);
        continue;
      }
      dialing.skip(lane.address);
      lane.reconnect();
    }
    watches.tidy();
    if (inFlight > 0) sweeping = clock.after(sweepMs, sweep);
  }

  const close = (): void => {
    closing.abort(closed());
    sweeping?.[Symbol.dispose]();
    for (const call of calls(lanes, waiting)) abandon(call, closed(call.sent));
    for (const lane of lanes) lane.close();
    watches.tidy();
  };

  return {
    call: (procedure, args, options, recover) => {
      const signal = options?.signal;
      if (closing.signal.aborted) return Promise.reject(closed());
      if (signal?.aborted === true) return Promise.reject(canceled(procedure.name, false, signal));
      const { promise, resolve, reject } = Promise.withResolvers<never>();
      const call: Call = newCall(procedure as Procedure<unknown, unknown>, args, options, {
        isQuestion: false,
        resolve: resolve as (value: unknown) => void,
        reject: recover === undefined ? reject : (cause) => resolve(attempted(recover, cause, call.since) as never),
      });
      if (signal !== undefined) watches.add(signal);
      if (options?.lane !== undefined) startOn(options.lane, call);
      else if (inFlight >= maxInFlight) waiting.add(call);
      else start(call);
      return promise;
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
  ...lanes.flatMap((lane) => lane.pending.values()),
];

const isAnyLate = (pending: Lane['pending'], now: number): boolean =>
  pending.values().some(({ expires, isQuestion }) => expires <= now && !isQuestion);

interface Dialing {
  first(): Address;
  /** That address does not answer. Several lanes may say so, each in its time. */
  skip(address: Address | undefined): void;
  /** `last`: the connection before. Its address is tried from the same port. */
  connect(handlers: Handlers, last?: LastConnection): Promise<Connection>;
}

/** Which of a server's addresses to try, for all lanes together. */
function createDialing(options: RpcClientOptions, closing: AbortSignal): Dialing {
  const {
    clock,
    addresses,
    tls,
    localPort,
    connect,
    onOpened,
    reading,
    dialMs = 5_000,
    maxRecord = 2 * 1024 * 1024,
  } = options;
  let preferred = 0;
  const from = (i: number): Address => addresses[(preferred + i) % addresses.length] as Address;

  /** A port that is undefined is one of the system's choice. */
  function* attempts(last: LastConnection | undefined): Iterable<{ address: Address; port: number | undefined }> {
    for (const address of addresses.map((_, i) => from(i))) {
      const isLast = address === last?.address;
      if (isLast) yield { address, port: last.localPort };
      if (!isLast || !last.isAwaited) yield { address, port: localPort?.() };
    }
  }

  /** The server may have come back between the two attempts: then the port of the last connection is better than another. */
  async function matching(
    other: Connection,
    last: LastConnection | undefined,
    handlers: Handlers,
  ): Promise<Connection> {
    if (last === undefined || last.address !== other.address) return other;
    const connection = await attempt(last.address, last.localPort, handlers).catch(() => undefined);
    if (connection === undefined) return other;
    other.reset();
    return connection;
  }

  async function attempt(address: Address, port: number | undefined, handlers: Handlers): Promise<Connection> {
    using limit = clock.deadline(dialMs, closing);
    const { signal } = limit;
    try {
      const about = { address, maxRecord, tls, localPort: port, connect, onOpened, reading, signal };
      return await dial({ ...about, ...handlers });
    } catch (cause) {
      // The time of this attempt is over, not the caller's.
      if (!signal.aborted || closing.aborted) throw cause;
      throw new RpcError(`no connection to ${shown(address)} in time`, { failure: 'unreachable', cause });
    }
  }

  return {
    first: () => from(0),
    skip: (address) => {
      if (address === from(0)) preferred = (preferred + 1) % addresses.length;
    },
    connect: async (handlers, last) => {
      let failure: unknown;
      for (const { address, port } of attempts(last)) {
        try {
          const connection = await attempt(address, port, handlers);
          preferred = addresses.indexOf(address);
          return port === last?.localPort ? connection : await matching(connection, last, handlers);
        } catch (cause) {
          failure = cause;
          if (address === last?.address && isSystemError(cause, 'ECONNREFUSED')) last.onRefused();
          // Another address would not recognise what was sent to this one, and the port is free in a moment.
          if (last?.isAwaited === true && isPortTaken(cause)) break;
        }
      }
      throw failure;
    },
  };
}

async function attempted<R>(recover: Recover<R>, cause: unknown, since: number): Promise<R> {
  return await recover(cause, since);
}

const late = ({ procedure, sent }: Call, addresses: readonly Address[]): RpcError =>
  new RpcError(`${procedure.name}: no reply in time from ${addresses.map(shown).join(', ')}`, {
    failure: 'deadline',
    maybeDone: sent,
  });

const closed = (maybeDone = false): RpcError =>
  new RpcError('the connection was closed', { failure: 'closed', maybeDone });

const canceled = (name: string, sent: boolean, signal: AbortSignal): RpcError =>
  new RpcError(`${name}: cancelled`, { failure: 'canceled', maybeDone: sent, cause: signal.reason });
