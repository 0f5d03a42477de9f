import type { Clock } from '#base/clock.ts';
import { createAbortListeners } from './abort-listeners.ts';
import {
  type Address,
  type Connection,
  type ConnectSocket,
  type DialOptions,
  dial,
  formatAddress,
  type RecordHandlers,
} from './connection.ts';
import { isPortTaken, isSystemError, RpcError } from './errors.ts';
import { encodeCredential, type Identity } from './message.ts';
import type { Procedure } from './procedure.ts';
import type { TlsClientOptions } from './tls.ts';
import { type Call, createTransport, type PreviousConnection, type Transport } from './transport.ts';
import { createVerifiers } from './verifiers.ts';

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  readonly deadlineMs?: number | undefined;
  /** The credential of another user, from `credential` in message.ts. Default: the client's own. */
  readonly credential?: Buffer | undefined;
  /**
   * For calls that could destroy changes of other clients if they ran twice. The client calls it before it resends the call, if
   * it does not know whether the server restarted. False: the server executed the call, or another client changed the object
   * since. Undefined: the outcome cannot be determined.
   */
  readonly isNotExecuted?: ((options: CallOptions) => Promise<boolean | undefined>) | undefined;
  /** Sends the call on this transport, without queueing: a query about a call that is pending there. */
  readonly transport?: number | undefined;
}

/** Returns a result despite the error, or throws. `since`: when the call was made, in the clock's elapsed time. */
export type Recover<R> = (cause: unknown, since: number) => R | Promise<R>;

export interface RpcClient extends Disposable {
  /**
   * `recover` handles a failure. It replaces a `catch` on the returned promise, which would cost another promise for every call.
   */
  call<A, R>(procedure: Procedure<A, R>, args: A, options?: CallOptions, recover?: Recover<R>): Promise<R>;
  /** The number of calls that have no reply yet. */
  readonly pending: number;
  /** The address that the client tries first. */
  readonly address: Address;
  close(): void;
}

export interface RpcClientOptions {
  readonly clock: Clock;
  /** The addresses of one server. If one does not answer, the client fails over to the next. */
  readonly addresses: readonly [Address, ...Address[]];
  /** The number of connections that the calls are spread over. */
  readonly connections?: number;
  /** Undefined: AUTH_NONE. */
  readonly identity?: Identity | undefined;
  readonly tls?: TlsClientOptions | undefined;
  /** Returns the local port for the next connection, for servers that require a privileged port. */
  readonly localPort?: (() => number) | undefined;
  /** Opens each TCP connection, for example in another network namespace. Default: `connect` of node:net. */
  readonly connect?: ConnectSocket | undefined;
  /** Called with each TCP connection before anything is sent on it. */
  readonly onOpened?: DialOptions['onOpened'];
  readonly readSocket?: DialOptions['readSocket'];
  /** The default deadline of a call. */
  readonly deadlineMs?: number;
  /** The timeout of one attempt to connect. */
  readonly dialMs?: number;
  /**
   * How often the client tries all addresses before it fails the calls that were never sent. Calls that were sent are retried until their
   * deadline.
   */
  readonly dialRounds?: number;
  /**
   * With several addresses: if one sends nothing for this long while calls are pending, the client fails over to the next. With
   * one address: a connection on which nothing was received for this long is replaced once a call on it has passed its deadline,
   * or once the server answers on a new connection but not on this one.
   */
  readonly stallMs?: number;
  /** The longest reply that the client accepts. */
  readonly maxRecord?: number;
  /** Calls beyond this number are queued. */
  readonly maxInFlight?: number;
}

/** V8 stores integers of 31 bits without allocating memory for them. */
const maxXid = 0x7fff_ffff;

/** How often one timer checks all deadlines. A timer for each call would cost more than the call. */
const deadlineCheckMs = 50;

export function createRpcClient(options: RpcClientOptions): RpcClient {
  const { clock, addresses } = options;
  const { deadlineMs = 30_000, stallMs = 10_000, maxInFlight = 1024 } = options;
  const closing = new AbortController();
  const dialer = createDialer(options, closing.signal);
  const queued = new Set<Call>();
  const verifiers = createVerifiers();
  let nextXid = Math.floor(Math.random() * maxXid);
  let nextTransport = 0;
  let inFlight = 0;
  let deadlineTimer: Disposable | undefined;

  const transports = Array.from({ length: options.connections ?? 1 }, (_, index) =>
    createTransport({
      clock,
      closing: closing.signal,
      connect: dialer.connect,
      dialRounds: options.dialRounds ?? 2,
      stallMs,
      verifiers,
      credential: encodeCredential(options.identity),
      callInternally: ({ procedure, args, ...how }) => {
        const { promise, resolve, reject } = Promise.withResolvers<unknown>();
        if (closing.signal.aborted) reject(closedError());
        else startOn(index, newCall(procedure, args, how, { resolve, reject, isInternal: true }));
        return promise;
      },
      isNotExecuted: async ({ isNotExecuted, expiresAt }) =>
        await isNotExecuted?.({ transport: index, deadlineMs: Math.max(0, expiresAt - clock.elapsed()) }),
      onEnded: (ended) => {
        inFlight--;
        if (ended.signal !== undefined) abortListeners.remove(ended.signal);
        if (queued.size > 0) startNextQueued();
      },
    }),
  );

  function startOn(index: number, call: Call): void {
    inFlight++;
    (transports[index] as Transport).start(call);
    deadlineTimer ??= clock.after(deadlineCheckMs, checkDeadlines);
  }

  const start = (call: Call): void => startOn(nextTransport++ % transports.length, call);

  function newCall(
    procedure: Procedure<unknown, unknown>,
    args: unknown,
    options: CallOptions | undefined,
    completion: Pick<Call, 'resolve' | 'reject' | 'isInternal'>,
  ): Call {
    nextXid = (nextXid + 1) & maxXid;
    const startedAt = clock.elapsed();
    return {
      xid: nextXid,
      procedure,
      args,
      resolve: completion.resolve,
      reject: completion.reject,
      signal: options?.signal,
      credential: options?.credential,
      isNotExecuted: options?.isNotExecuted,
      isInternal: completion.isInternal,
      startedAt: startedAt,
      expiresAt: startedAt + (options?.deadlineMs ?? deadlineMs),
      sent: false,
      sentOn: undefined,
      resent: false,
      lendsBuffer: false,
      next: undefined,
    };
  }

  function startNextQueued(): void {
    const [next] = queued;
    if (next === undefined) return;
    queued.delete(next);
    start(next);
  }

  const abortListeners = createAbortListeners((signal) => {
    for (const call of allCalls(transports, queued))
      if (call.signal === signal) failCall(call, canceledError(call.procedure.name, call.sent, signal));
  });

  function failCall(call: Call, error: RpcError): void {
    if (queued.delete(call) && call.signal !== undefined) abortListeners.remove(call.signal);
    for (const lane of transports) lane.abandon(call);
    call.reject(error);
  }

  function checkDeadlines(): void {
    deadlineTimer = undefined;
    const now = clock.elapsed();
    const silent = transports.filter((lane) => lane.silentMs(now) > stallMs);
    // With a single address, reset a connection only after a call on it has expired: others may still get their replies.
    const dead = addresses.length > 1 ? silent : silent.filter((lane) => hasExpiredCall(lane.pending, now));
    for (const call of allCalls(transports, queued))
      if (call.expiresAt <= now) failCall(call, deadlineError(call, addresses));
    for (const lane of transports) lane.repeat(now);
    for (const lane of silent) {
      if (!dead.includes(lane)) {
        lane.checkLiveness(stallMs);
        continue;
      }
      dialer.skip(lane.address);
      lane.reconnect();
    }
    abortListeners.removeUnused();
    if (inFlight > 0) deadlineTimer = clock.after(deadlineCheckMs, checkDeadlines);
  }

  const close = (): void => {
    closing.abort(closedError());
    deadlineTimer?.[Symbol.dispose]();
    for (const call of allCalls(transports, queued)) failCall(call, closedError(call.sent));
    for (const lane of transports) lane.close();
    abortListeners.removeUnused();
  };

  return {
    call: (procedure, args, options, recover) => {
      const signal = options?.signal;
      if (closing.signal.aborted) return Promise.reject(closedError());
      if (signal?.aborted === true) return Promise.reject(canceledError(procedure.name, false, signal));
      const { promise, resolve, reject } = Promise.withResolvers<never>();
      const call: Call = newCall(procedure as Procedure<unknown, unknown>, args, options, {
        isInternal: false,
        resolve: resolve as (value: unknown) => void,
        reject:
          recover === undefined ? reject : (cause) => resolve(recoverAsync(recover, cause, call.startedAt) as never),
      });
      if (signal !== undefined) abortListeners.add(signal);
      if (options?.transport !== undefined) startOn(options.transport, call);
      else if (inFlight >= maxInFlight) queued.add(call);
      else start(call);
      return promise;
    },
    get pending() {
      return inFlight + queued.size;
    },
    get address() {
      return dialer.preferredAddress();
    },
    close,
    [Symbol.dispose]: close,
  };
}

const allCalls = (transports: readonly Transport[], waiting: ReadonlySet<Call>): readonly Call[] => [
  ...waiting,
  ...transports.flatMap((lane) => lane.pending.values()),
];

const hasExpiredCall = (pending: Transport['pending'], now: number): boolean =>
  pending.values().some(({ expiresAt, isInternal }) => expiresAt <= now && !isInternal);

interface Dialer {
  preferredAddress(): Address;
  /** Marks an address that does not answer, so that the next one is preferred. Several transports may report the same address. */
  skip(address: Address | undefined): void;
  /** `last`: the previous connection. Its address is tried from the same local port. */
  connect(handlers: RecordHandlers, last?: PreviousConnection): Promise<Connection>;
}

/** Chooses among the server's addresses, for all transports together. */
function createDialer(options: RpcClientOptions, closing: AbortSignal): Dialer {
  const {
    clock,
    addresses,
    tls,
    localPort,
    connect,
    onOpened,
    readSocket,
    dialMs = 5_000,
    maxRecord = 2 * 1024 * 1024,
  } = options;
  let preferred = 0;
  const addressAt = (i: number): Address => addresses[(preferred + i) % addresses.length] as Address;

  /** An undefined port lets the kernel choose. */
  function* dialTargets(
    last: PreviousConnection | undefined,
  ): Iterable<{ address: Address; port: number | undefined }> {
    for (const address of addresses.map((_, i) => addressAt(i))) {
      const isLast = address === last?.address;
      if (isLast) yield { address, port: last.localPort };
      if (!isLast || !last.mustReusePort) yield { address, port: localPort?.() };
    }
  }

  /** If the server came back between the two attempts, use the local port of the previous connection after all. */
  async function preferPreviousPort(
    fallback: Connection,
    last: PreviousConnection | undefined,
    handlers: RecordHandlers,
  ): Promise<Connection> {
    if (last === undefined || last.address !== fallback.address) return fallback;
    const connection = await dialOnce(last.address, last.localPort, handlers).catch(() => undefined);
    if (connection === undefined) return fallback;
    fallback.reset();
    return connection;
  }

  async function dialOnce(address: Address, port: number | undefined, handlers: RecordHandlers): Promise<Connection> {
    using limit = clock.deadline(dialMs, closing);
    const { signal } = limit;
    try {
      const dialOptions = { address, maxRecord, tls, localPort: port, connect, onOpened, readSocket, signal };
      return await dial({ ...dialOptions, ...handlers });
    } catch (cause) {
      // Only this attempt timed out, not the caller's deadline.
      if (!signal.aborted || closing.aborted) throw cause;
      throw new RpcError(`no connection to ${formatAddress(address)} in time`, { failure: 'unreachable', cause });
    }
  }

  return {
    preferredAddress: () => addressAt(0),
    skip: (address) => {
      if (address === addressAt(0)) preferred = (preferred + 1) % addresses.length;
    },
    connect: async (handlers, last) => {
      let failure: unknown;
      for (const { address, port } of dialTargets(last)) {
        try {
          const connection = await dialOnce(address, port, handlers);
          preferred = addresses.indexOf(address);
          return port === last?.localPort ? connection : await preferPreviousPort(connection, last, handlers);
        } catch (cause) {
          failure = cause;
          if (address === last?.address && isSystemError(cause, 'ECONNREFUSED')) last.onRefused();
          // Do not try another address: the server would not recognise the resent calls, and the port will soon be free.
          if (last?.mustReusePort === true && isPortTaken(cause)) break;
        }
      }
      throw failure;
    },
  };
}

async function recoverAsync<R>(recover: Recover<R>, cause: unknown, since: number): Promise<R> {
  return await recover(cause, since);
}

const deadlineError = ({ procedure, sent }: Call, addresses: readonly Address[]): RpcError =>
  new RpcError(`${procedure.name}: no reply in time from ${addresses.map(formatAddress).join(', ')}`, {
    failure: 'deadline',
    maybeDone: sent,
  });

const closedError = (maybeDone = false): RpcError =>
  new RpcError('the connection was closed', { failure: 'closed', maybeDone });

const canceledError = (name: string, sent: boolean, signal: AbortSignal): RpcError =>
  new RpcError(`${name}: cancelled`, { failure: 'canceled', maybeDone: sent, cause: signal.reason });
