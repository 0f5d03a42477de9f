import type { Clock } from '#base/clock.ts';
import type { CallOptions } from './client.ts';
import type { Address, Connection, RecordHandlers } from './connection.ts';
import { isPortTaken, RpcError } from './errors.ts';
import { createLivenessCheck } from './liveness-check.ts';
import { messageCall, rpcVersion } from './message.ts';
import { createPendingCalls, type PendingCalls } from './pending-calls.ts';
import type { Procedure } from './procedure.ts';
import { createReplyHandlers } from './reply-handlers.ts';
import { createResending, isSentMutation, type ResendingOptions, type SentOn } from './resending.ts';
import type { Encode } from './sender.ts';
import type { Verifiers } from './verifiers.ts';

/** A call from when it was asked for until its reply. */
export interface Call {
  readonly xid: number;
  readonly procedure: Procedure<unknown, unknown>;
  readonly args: unknown;
  readonly resolve: (value: unknown) => void;
  readonly reject: (cause: unknown) => void;
  readonly signal: AbortSignal | undefined;
  /** Undefined: that of the lane. */
  readonly credential: Buffer | undefined;
  /** See `CallOptions`. */
  readonly isNotExecuted: CallOptions['isNotExecuted'];
  /** The lane asks it for itself: nobody is late if it has no reply. */
  readonly isInternal: boolean;
  /** When it was made; both by the clock's elapsed time. */
  readonly startedAt: number;
  readonly expiresAt: number;
  sent: boolean;
  /** The connection that it was last sent on. */
  sentOn: SentOn | undefined;
  resent: boolean;
  /** Some of it goes out of the caller's own memory. */
  lendsBuffer: boolean;
  /** In a chain of `Pending`. */
  next: Call | undefined;
}

export interface TransportOptions {
  readonly clock: Clock;
  readonly credential: Buffer;
  /** Makes a connection, to whichever address answers; from the port of the last one, if that is possible. */
  readonly connect: (handlers: RecordHandlers, last?: PreviousConnection) => Promise<Connection>;
  /** Makes a call on this lane. */
  readonly ask: ResendingOptions['ask'];
  readonly isNotExecuted: ResendingOptions['isNotExecuted'];
  readonly verifiers: Verifiers;
  /** After so long without a word a connection may be given up. */
  readonly stallMs: number;
  /** How often that is tried before the calls that wait fail. */
  readonly dialRounds: number;
  readonly closing: AbortSignal;
  /** A call has ended, in whatever way. */
  readonly onEnded: (call: Call) => void;
}

/** The previous connection. The server recognises resent calls by its endpoints. */
export interface PreviousConnection {
  readonly address: Address;
  readonly localPort: number;
  /** Retry the same port; do not use another one yet. */
  readonly mustReusePort: boolean;
  /** Its address refused a connection: no server runs there. */
  readonly onRefused: () => void;
}

/** One connection at a time; reconnects when it breaks. `Resending` decides which pending calls are resent. */
export interface Transport {
  readonly pending: PendingCalls;
  start(call: Call): void;
  /** Nobody waits for its reply any more. */
  abandon(call: Call): void;
  /** For how long nothing came, though something was asked; from the first time it is looked at. */
  silentMs(now: number): number;
  /** To be called now and then. */
  repeat(now: number): void;
  /** Nothing came for so long. Where the server answers on a new connection alone, that is gone over to. */
  checkLiveness(silentMs: number): void;
  /** Where it is connected to. */
  readonly address: Address | undefined;
  /** Tries another address. */
  reconnect(): void;
  close(): void;
}

const firstBackOffMs = 50;
const maxBackOffMs = 5_000;
/** A server that answers, but nothing of what it was asked for, is given twice as long each time, up to so many times. */
const maxSilenceFactor = 16;
/**
 * Not every server says why it ends an encrypted connection: Linux does not where it refuses a client's certificate. One that is
 * being started does so now and then; not for half a minute, which so many take with their pauses.
 */
const maxClosedUnanswered = 14;
/** How long to retry the port of a lost connection: it may be in use for a moment, or a firewall may drop it. */
const reusePortMs = 10_000;

const portInUse = ({
  address,
  localPort,
}: Connection): Pick<PreviousConnection, 'address' | 'localPort'> | undefined =>
  localPort === undefined ? undefined : { address, localPort };

/** Half of it at random: many clients shall not come back to a server at the same moment. */
const withJitter = (ms: number): number => ms * (0.5 + Math.random() / 2);

export function createTransport(options: TransportOptions): Transport {
  const { clock, closing } = options;
  const pending = createPendingCalls();
  let connection: Connection | undefined;
  let isDialing = false;
  let silentSince: number | undefined;
  /** What had come when it was looked at last. */
  let received = 0;
  let isChecking = false;
  let silenceFactor = 1;
  /** Its data are on their way straight into the caller's own buffer. */
  let receiving: Call | undefined;
  /** Calls whose data go there. */
  let readsInFlight = 0;
  let backOff = firstBackOffMs;
  /** Nothing was answered on the last connection. */
  let isUnanswered = false;
  let connectedAt = 0;
  /** So many connections in a row were ended by the server, soon, and before it had answered. */
  let closedUnanswered = 0;
  /** A call that was sent on this connection; it may still lie in a queue. */
  let hasAbandonedCall = false;
  let isCopying = false;
  let previous: Pick<PreviousConnection, 'address' | 'localPort'> | undefined;
  let lostAt = 0;
  /** The address of the last connection refused another one since. */
  let wasDown = false;

  function drop(call: Call): void {
    if (!pending.delete(call)) return;
    if (call.procedure.decodeHead !== undefined) readsInFlight--;
    options.onEnded(call);
  }

  /**
   * In the middle of it the memory is the caller's again: nothing more may be put into it, and what he puts into it must
   * not be sent. Node has been told to, and cannot be told otherwise but by ending the connection.
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
      // The only one under way is asked by somebody who then waits for it. Others may have company in this turn.
      if (pending.size === 1) sender.flush();
      else sender.flushSoon();
    } catch (cause) {
      // The arguments cannot be laid out: nothing was sent.
      fail(call, cause);
    }
  }

  const handlers = createReplyHandlers(pending, drop, {
    answered: () => {
      isUnanswered = false;
      closedUnanswered = 0;
      silenceFactor = 1;
    },
    decoded: (call, result) => resending.answered(call, result),
    receiving: (call) => {
      receiving = call;
    },
    expectsHead: () => readsInFlight > 0,
  });

  const livenessCheck = createLivenessCheck(options);
  const resending = createResending({
    clock,
    pending,
    send,
    fail,
    lateCallMs: options.stallMs,
    closing,
    ask: options.ask,
    isNotExecuted: options.isNotExecuted,
    verifiers: options.verifiers,
    isBacklogged: () => (connection?.sender.queued ?? 0) > 0,
  });

  async function pause(): Promise<void> {
    const ms = withJitter(backOff);
    backOff = Math.min(backOff * 2, maxBackOffMs);
    await clock.sleep(ms, closing).catch(() => undefined);
  }

  /** Undefined: no pending call needs to be recognised by the server. */
  function previousToReuse(): PreviousConnection | undefined {
    if (previous === undefined || !pending.values().some(isSentMutation)) return undefined;
    const onRefused = (): void => {
      wasDown = true;
    };
    return { ...previous, mustReusePort: clock.elapsed() - lostAt < reusePortMs, onRefused };
  }

  /** Connects, and sends what has no reply. */
  async function keepConnected(): Promise<void> {
    if (isDialing || closing.aborted) return;
    isDialing = true;
    // A server that takes connections only to end them is not to be run against without a pause.
    if (isUnanswered && clock.elapsed() - connectedAt < maxBackOffMs) await pause();
    else backOff = firstBackOffMs;
    for (let round = 1; connection === undefined && pending.size > 0; round++) {
      try {
        connection = await options.connect(handlers, previousToReuse());
      } catch (cause) {
        closedUnanswered = 0;
        // A port in use says nothing about the server, so it does not count as a round.
        if (isPortTaken(cause)) round--;
        const isOver = isTlsFailure(cause) || closing.aborted;
        for (const call of pending.values()) {
          // What the server may have done already is asked for until its deadline: a restart takes a moment.
          if (isOver || (round >= options.dialRounds && !call.sent)) fail(call, connectError(cause, call.sent));
        }
        if (pending.size > 0) await pause();
      }
    }
    isDialing = false;
    if (connection === undefined) return;
    isUnanswered = true;
    hasAbandonedCall = false;
    silentSince = undefined;
    received = 0;
    connectedAt = clock.elapsed();
    const current = connection;
    wasDown &&= current.address === previous?.address;
    previous = portInUse(current);
    void current.ended.then((why) => onLost(current, why));
    resending.connected(current, wasDown);
  }

  function onLost(which: Connection, cause: Error): void {
    const wasClosed = which.wasClosedUnanswered && clock.elapsed() - connectedAt < maxBackOffMs;
    // Reset it: after a normal close the port would stay in TIME_WAIT for a minute.
    which.reset();
    if (connection !== which) return;
    connection = receiving = undefined;
    lostAt = clock.elapsed();
    wasDown = false;
    const lastSentOn = resending.sentOn?.connection;
    resending.lost();
    closedUnanswered = wasClosed ? closedUnanswered + 1 : 0;
    const why = closedUnanswered < maxClosedUnanswered ? cause : closedUnansweredError(cause);
    // A server that breaks the protocol would do so again.
    if (why instanceof RpcError && why.failure === 'garbled')
      for (const call of pending.values()) fail(call, garbledError(why, call));
    // A server that rejects TLS has executed nothing from this connection. A server that just closes it may have.
    const wasSent = (call: Call): boolean => call.resent || (call.sent && call.sentOn?.connection !== lastSentOn);
    if (isTlsFailure(why))
      for (const call of pending.values())
        fail(call, connectError(why, isTlsFailure(cause) ? wasSent(call) : call.sent));
    if (pending.size > 0) void keepConnected();
  }

  /** For how long nothing came, though something was asked. */
  function silentMsAt(now: number): number {
    if (connection === undefined) return 0;
    if (connection.receivedBytes !== received) silentSince = undefined;
    received = connection.receivedBytes;
    if (pending.size > 0) silentSince ??= now;
    return now - (silentSince ?? now);
  }

  async function checkConnection(silentMs: number): Promise<void> {
    const [current, [any]] = [connection, pending.values()];
    if (isChecking || current === undefined || any === undefined) return;
    isChecking = true;
    if (await livenessCheck.isDead(current, any.procedure, silentMs)) {
      silenceFactor = Math.min(silenceFactor * 2, maxSilenceFactor);
      if (connection === current) current.reset();
    } else if (silentMsAt(clock.elapsed()) > silentMs)
      await clock.sleep(Math.min(silentMs, maxBackOffMs), closing).catch(() => undefined);
    isChecking = false;
  }

  return {
    pending,
    start: (call) => {
      pending.add(call);
      if (call.procedure.decodeHead !== undefined) readsInFlight++;
      send(call);
    },
    abandon,
    silentMs: silentMsAt,
    repeat: resending.repeat,
    checkLiveness: (silentMs) => {
      if (silentMsAt(clock.elapsed()) > silentMs * silenceFactor) void checkConnection(silentMs);
    },
    get address() {
      return connection?.address;
    },
    reconnect: () => connection?.reset(),
    close: () => (hasAbandonedCall ? connection?.reset() : connection?.close()),
  };
}

/** `isCopying`: the caller's memory is not lent to this copy. */
function createEncode(usual: Buffer, isCopying: () => boolean): Encode<Call> {
  return (writer, call) => {
    const { xid, procedure, args, credential = usual } = call;
    const { length } = credential;
    writer.reserve(24 + length);
    const { view, at } = writer;
    view.setUint32(at, xid);
    view.setUint32(at + 4, messageCall);
    view.setUint32(at + 8, rpcVersion);
    view.setUint32(at + 12, procedure.program);
    view.setUint32(at + 16, procedure.version);
    view.setUint32(at + 20, procedure.number);
    writer.buffer.set(credential, at + 24);
    writer.at = at + 24 + length;
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
  new RpcError(
    'the server ends encrypted connections without an answer: it may refuse the certificate of this client',
    {
      failure: 'tls',
      cause,
    },
  );

function connectError(cause: unknown, sent: boolean): RpcError {
  const failure = cause instanceof RpcError ? cause.failure : 'unreachable';
  const message = cause instanceof Error ? cause.message : String(cause);
  return new RpcError(message, {
    failure: sent && failure === 'unreachable' ? 'lost' : failure,
    maybeDone: sent,
    cause,
  });
}
