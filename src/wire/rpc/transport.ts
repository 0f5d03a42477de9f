import type { Clock } from '#base/clock.ts';
import type { CallOptions } from './client.ts';
import type { Address, Connection, RecordHandlers } from './connection.ts';
import { isPortTaken, RpcError } from './errors.ts';
import { createLivenessCheck } from './liveness-check.ts';
import { callType, rpcVersion } from './message.ts';
import { createPendingCalls, type PendingCalls } from './pending-calls.ts';
import type { Procedure } from './procedure.ts';
import { createReplyHandlers } from './reply-handlers.ts';
import { createResending, isSentMutation, type ResendingOptions, type SentOn } from './resending.ts';
import type { Encode } from './sender.ts';
import { createSilenceWatch } from './silence-watch.ts';
import type { Verifiers } from './verifiers.ts';

/** A call from when the caller made it until its reply. */
export interface Call {
  readonly xid: number;
  readonly procedure: Procedure<unknown, unknown>;
  readonly args: unknown;
  readonly resolve: (value: unknown) => void;
  readonly reject: (cause: unknown) => void;
  readonly signal: AbortSignal | undefined;
  /** Undefined: the transport's own. */
  readonly credential: Buffer | undefined;
  /** See `CallOptions`. */
  readonly isNotExecuted: CallOptions['isNotExecuted'];
  /** The transport made this call itself, so an expired deadline does not concern any caller. */
  readonly isInternal: boolean;
  /** When the call was made; like `expiresAt` in the clock's elapsed time. */
  readonly startedAt: number;
  readonly expiresAt: number;
  sent: boolean;
  /** The connection on which it was last sent. */
  sentOn: SentOn | undefined;
  resent: boolean;
  /** Part of the call is sent from the caller's own buffer. */
  lendsBuffer: boolean;
  /** The next call in the same bucket of `PendingCalls`. */
  next: Call | undefined;
}

export interface TransportOptions {
  readonly clock: Clock;
  readonly credential: Buffer;
  /** Connects to any address that answers; from the previous local port, if possible. */
  readonly connect: (handlers: RecordHandlers, last?: PreviousConnection) => Promise<Connection>;
  /** Makes a call on this transport. */
  readonly callInternally: ResendingOptions['call'];
  readonly isNotExecuted: ResendingOptions['isNotExecuted'];
  readonly verifiers: Verifiers;
  /** A connection that is silent for this long may be replaced. */
  readonly stallMs: number;
  /** How often to try to connect before pending calls fail. */
  readonly dialRounds: number;
  readonly closing: AbortSignal;
  /** Called when a call has ended, for any reason. */
  readonly onEnded: (call: Call) => void;
}

/** The previous connection. The server recognises resent calls by its endpoints. */
export interface PreviousConnection {
  readonly address: Address;
  readonly localPort: number;
  /** Retry the same port; do not use another one yet. */
  readonly mustReusePort: boolean;
  /** Called if its address refused a connection: no server runs there. */
  readonly onRefused: () => void;
}

/** One connection at a time; reconnects when it breaks. `Resending` decides which pending calls are resent. */
export interface Transport {
  readonly pending: PendingCalls;
  start(call: Call): void;
  /** Drops a call whose caller no longer waits for it. */
  abandon(call: Call): void;
  /** How long nothing was received while calls were pending, counted from the first call of this function. */
  silentMs(now: number): number;
  /** Call it periodically. */
  repeat(now: number): void;
  /**
   * Nothing was received for this long. If the server answers on a new connection but not on this one, the transport reconnects.
   */
  checkLiveness(silentMs: number): void;
  /** The address that it is connected to. */
  readonly address: Address | undefined;
  /** Tries another address. */
  reconnect(): void;
  close(): void;
}

const firstBackOffMs = 50;
const maxBackOffMs = 5_000;
/**
 * Not every server says why it closes a TLS connection: Linux does not say it when it rejects a client's certificate. A server
 * that is starting up also closes connections, but not for half a minute, which this number of attempts takes.
 */
const maxConnectionsClosedUnanswered = 14;
/** How long to retry the port of a lost connection: it may be in use for a moment, or a firewall may drop it. */
const reusePortMs = 10_000;

const localPortOf = ({
  address,
  localPort,
}: Connection): Pick<PreviousConnection, 'address' | 'localPort'> | undefined =>
  localPort === undefined ? undefined : { address, localPort };

/** Makes half of the time random, so that many clients do not reconnect to a server at the same moment. */
const withJitter = (ms: number): number => ms * (0.5 + Math.random() / 2);

export function createTransport(options: TransportOptions): Transport {
  const { clock, closing } = options;
  const pending = createPendingCalls();
  let connection: Connection | undefined;
  let isDialing = false;
  /** The call whose data are being received straight into the caller's buffer. */
  let receiving: Call | undefined;
  /** The number of pending calls that read into the caller's buffer. */
  let readsInFlight = 0;
  let backOffMs = firstBackOffMs;
  /** The current or last connection has received no reply. */
  let isUnanswered = false;
  let connectedAt = 0;
  /** How many connections in a row the server closed soon, and before it answered. */
  let closedUnanswered = 0;
  /** A call on this connection was abandoned after it was sent; it may still be in a send queue. */
  let hasAbandonedCall = false;
  let isCopying = false;
  let previous: Pick<PreviousConnection, 'address' | 'localPort'> | undefined;
  let lostAt = 0;
  /** The address of the previous connection has refused a connection since. */
  let wasDown = false;

  function drop(call: Call): void {
    if (!pending.delete(call)) return;
    if (call.procedure.decodeHead !== undefined) readsInFlight--;
    options.onEnded(call);
  }

  /**
   * Once a call is abandoned, its buffer belongs to the caller again: the transport must not write to it, and must not send what
   * the caller writes to it. Node already has the buffer, so the only way to stop it is to reset the connection.
   */
  function abandon(call: Call): void {
    const isUnsent = call.lendsBuffer && pending.get(call.xid) === call && (connection?.sender.queued ?? 0) > 0;
    if (receiving === call || isUnsent) {
      receiving = undefined;
      connection?.reset();
    }
    if (call.sent && pending.get(call.xid) === call) hasAbandonedCall = true;
    drop(call);
  }

  function fail(call: Call, error: unknown): void {
    drop(call);
    call.reject(error);
  }

  const encode = createEncode(options.credential, () => isCopying);

  function send(call: Call, isCopied = false): void {
    if (connection === undefined) return void keepConnected();
    try {
      const { sender } = connection;
      isCopying = isCopied;
      sender.addRecord(encode, call);
      call.resent = call.sent;
      call.sent = true;
      call.sentOn = resending.sentOn;
      // If this is the only pending call, its caller is probably waiting for it. Otherwise other calls of this turn may go out
      // together with it.
      if (pending.size === 1) sender.flush();
      else sender.flushSoon();
    } catch (cause) {
      // The arguments cannot be encoded: nothing was sent.
      fail(call, cause);
    }
  }

  const handlers = createReplyHandlers(pending, drop, {
    answered: () => {
      isUnanswered = false;
      closedUnanswered = 0;
      silence.answered();
    },
    decoded: (call, result) => resending.answered(call, result),
    receiving: (call) => {
      receiving = call;
    },
    expectsHead: () => readsInFlight > 0,
  });

  const silence = createSilenceWatch({
    clock,
    closing,
    pending,
    livenessCheck: createLivenessCheck(options),
    connection: () => connection,
  });
  const resending = createResending({
    clock,
    pending,
    send,
    fail,
    lateCallMs: options.stallMs,
    closing,
    call: options.callInternally,
    isNotExecuted: options.isNotExecuted,
    verifiers: options.verifiers,
    isBacklogged: () => (connection?.sender.queued ?? 0) > 0,
  });

  async function waitBeforeReconnect(): Promise<void> {
    const ms = withJitter(backOffMs);
    backOffMs = Math.min(backOffMs * 2, maxBackOffMs);
    await clock.sleep(ms, closing).catch(() => undefined);
  }

  /** Undefined: no pending call needs to be recognised by the server. */
  function previousForMutations(): PreviousConnection | undefined {
    if (previous === undefined || !pending.values().some(isSentMutation)) return undefined;
    const onRefused = (): void => {
      wasDown = true;
    };
    return { ...previous, mustReusePort: clock.elapsed() - lostAt < reusePortMs, onRefused };
  }

  /** Connects, and sends the calls that have no reply. */
  async function keepConnected(): Promise<void> {
    if (isDialing || closing.aborted) return;
    isDialing = true;
    // Do not reconnect without a pause to a server that accepts connections only to close them.
    if (isUnanswered && clock.elapsed() - connectedAt < maxBackOffMs) await waitBeforeReconnect();
    else backOffMs = firstBackOffMs;
    for (let round = 1; connection === undefined && pending.size > 0; round++) {
      try {
        connection = await options.connect(handlers, previousForMutations());
      } catch (cause) {
        closedUnanswered = 0;
        // A port in use says nothing about the server, so it does not count as a round.
        if (isPortTaken(cause)) round--;
        const isOver = isTlsFailure(cause) || closing.aborted;
        for (const call of pending.values()) {
          // Calls that the server may have executed are retried until their deadline: a restart takes a moment.
          if (isOver || (round >= options.dialRounds && !call.sent)) fail(call, connectError(cause, call.sent));
        }
        if (pending.size > 0) await waitBeforeReconnect();
      }
    }
    isDialing = false;
    if (connection === undefined) return;
    isUnanswered = true;
    hasAbandonedCall = false;
    silence.connected();
    connectedAt = clock.elapsed();
    const current = connection;
    wasDown &&= current.address === previous?.address;
    previous = localPortOf(current);
    void current.ended.then((why) => onLost(current, why));
    resending.connected(current, wasDown);
  }

  function onLost(lostConnection: Connection, cause: Error): void {
    const wasClosed = lostConnection.wasClosedUnanswered && clock.elapsed() - connectedAt < maxBackOffMs;
    // Reset it: after a normal close the port would stay in TIME_WAIT for a minute.
    lostConnection.reset();
    if (connection !== lostConnection) return;
    connection = receiving = undefined;
    lostAt = clock.elapsed();
    wasDown = false;
    const lastSentOn = resending.sentOn?.connection;
    resending.lost();
    closedUnanswered = wasClosed ? closedUnanswered + 1 : 0;
    const why = closedUnanswered < maxConnectionsClosedUnanswered ? cause : closedUnansweredError(cause);
    // Do not retry: a server that violates the protocol would do so again.
    if (why instanceof RpcError && why.failure === 'garbled')
      for (const call of pending.values()) fail(call, garbledError(why, call));
    // A server that rejects TLS has executed nothing from this connection. A server that just closes the connection may have.
    const wasSent = (call: Call): boolean => call.resent || (call.sent && call.sentOn?.connection !== lastSentOn);
    if (isTlsFailure(why))
      for (const call of pending.values())
        fail(call, connectError(why, isTlsFailure(cause) ? wasSent(call) : call.sent));
    if (pending.size > 0) void keepConnected();
  }

  return {
    pending,
    start: (call) => {
      pending.add(call);
      if (call.procedure.decodeHead !== undefined) readsInFlight++;
      send(call);
    },
    abandon,
    silentMs: silence.silentMs,
    repeat: resending.repeat,
    checkLiveness: silence.checkIfSilent,
    get address() {
      return connection?.address;
    },
    reconnect: () => connection?.reset(),
    close: () => (hasAbandonedCall ? connection?.reset() : connection?.close()),
  };
}

/** `isCopying`: copies the data instead of lending the caller's buffer to the socket. */
function createEncode(defaultCredential: Buffer, isCopying: () => boolean): Encode<Call> {
  return (writer, call) => {
    const { xid, procedure, args, credential = defaultCredential } = call;
    const { length } = credential;
    writer.reserve(24 + length);
    const { view, offset: at } = writer;
    view.setUint32(at, xid);
    view.setUint32(at + 4, callType);
    view.setUint32(at + 8, rpcVersion);
    view.setUint32(at + 12, procedure.program);
    view.setUint32(at + 16, procedure.version);
    view.setUint32(at + 20, procedure.number);
    writer.buffer.set(credential, at + 24);
    writer.offset = at + 24 + length;
    const data = procedure.encode(writer, args);
    // The reply to the first copy ends the call and returns the buffer to the caller, so the second copy must not use it.
    if (data !== undefined && isCopying()) return Buffer.from(data);
    call.lendsBuffer = data !== undefined;
    return data;
  };
}

const isTlsFailure = (cause: unknown): boolean => cause instanceof RpcError && cause.failure === 'tls';

const garbledError = ({ message, cause }: RpcError, { sent }: Call): RpcError =>
  new RpcError(message, { failure: 'garbled', maybeDone: sent, cause });

const closedUnansweredError = (cause: Error): RpcError =>
  new RpcError('the server closes TLS connections without a reply: it may reject the certificate of this client', {
    failure: 'tls',
    cause,
  });

function connectError(cause: unknown, sent: boolean): RpcError {
  const failure = cause instanceof RpcError ? cause.failure : 'unreachable';
  const message = cause instanceof Error ? cause.message : String(cause);
  return new RpcError(message, {
    failure: sent && failure === 'unreachable' ? 'lost' : failure,
    maybeDone: sent,
    cause,
  });
}
