import type { Clock } from '#base/clock.ts';
import type { CallOptions } from './client.ts';
import type { Address, Connection, Handlers } from './connection.ts';
import { isPortTaken, RpcError } from './errors.ts';
import { createDoubts } from './liveness-check.ts';
import { messageCall, rpcVersion } from './message.ts';
import { createPending, type Pending } from './pending-calls.ts';
import type { Procedure } from './procedure.ts';
import { createReplies } from './reply-handlers.ts';
import { createResending, isSentMutation, type ResendingParts, type SentOn } from './resending.ts';
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
  readonly isUndone: CallOptions['isUndone'];
  /** The lane asks it for itself: nobody is late if it has no reply. */
  readonly isQuestion: boolean;
  /** When it was made; both by the clock's elapsed time. */
  readonly since: number;
  readonly expires: number;
  sent: boolean;
  /** The connection that it was last sent on. */
  sentOn: SentOn | undefined;
  resent: boolean;
  /** Some of it goes out of the caller's own memory. */
  lends: boolean;
  /** In a chain of `Pending`. */
  next: Call | undefined;
}

export interface LaneParts {
  readonly clock: Clock;
  readonly credential: Buffer;
  /** Makes a connection, to whichever address answers; from the port of the last one, if that is possible. */
  readonly connect: (handlers: Handlers, last?: LastConnection) => Promise<Connection>;
  /** Makes a call on this lane. */
  readonly ask: ResendingParts['ask'];
  readonly look: ResendingParts['look'];
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
export interface LastConnection {
  readonly address: Address;
  readonly localPort: number;
  /** Retry the same port; do not use another one yet. */
  readonly isAwaited: boolean;
  /** Its address refused a connection: no server runs there. */
  readonly onRefused: () => void;
}

/** One connection at a time; reconnects when it breaks. `Resending` decides which pending calls are resent. */
export interface Lane {
  readonly pending: Pending;
  start(call: Call): void;
  /** Nobody waits for its reply any more. */
  giveUp(call: Call): void;
  /** For how long nothing came, though something was asked; from the first time it is looked at. */
  silence(now: number): number;
  /** To be called now and then. */
  repeat(now: number): void;
  /** Nothing came for so long. Where the server answers on a new connection alone, that is gone over to. */
  doubt(silentMs: number): void;
  /** Where it is connected to. */
  readonly address: Address | undefined;
  /** Tries another address. */
  reconnect(): void;
  close(): void;
}

const firstBackOffMs = 50;
const longestBackOffMs = 5_000;
/** A server that answers, but nothing of what it was asked for, is given twice as long each time, up to so many times. */
const longestPatience = 16;
/**
 * Not every server says why it ends an encrypted connection: Linux does not where it refuses a client's certificate. One that is
 * being started does so now and then; not for half a minute, which so many take with their pauses.
 */
const mostTurnedAway = 14;
/** How long to retry the port of a lost connection: it may be in use for a moment, or a firewall may drop it. */
const awaitPortMs = 10_000;

const portOf = ({ address, localPort }: Connection): Pick<LastConnection, 'address' | 'localPort'> | undefined =>
  localPort === undefined ? undefined : { address, localPort };

/** Half of it at random: many clients shall not come back to a server at the same moment. */
const withJitter = (ms: number): number => ms * (0.5 + Math.random() / 2);

export function createLane(parts: LaneParts): Lane {
  const { clock, closing } = parts;
  const pending = createPending();
  let connection: Connection | undefined;
  let isDialing = false;
  let silentSince: number | undefined;
  /** What had come when it was looked at last. */
  let received = 0;
  let isDoubting = false;
  let patience = 1;
  /** Its data are on their way straight into the caller's own buffer. */
  let receiving: Call | undefined;
  /** Calls whose data go there. */
  let reads = 0;
  let backOff = firstBackOffMs;
  /** Nothing was answered on the last connection. */
  let wasFruitless = false;
  let connectedAt = 0;
  /** So many connections in a row were ended by the server, soon, and before it had answered. */
  let turnedAway = 0;
  /** A call that was sent on this connection; it may still lie in a queue. */
  let wasGivenUp = false;
  let isCopying = false;
  let last: Pick<LastConnection, 'address' | 'localPort'> | undefined;
  let lostAt = 0;
  /** The address of the last connection refused another one since. */
  let wasDown = false;

  function drop(call: Call): void {
    if (!pending.delete(call)) return;
    if (call.procedure.head !== undefined) reads--;
    parts.onEnded(call);
  }

  /**
   * In the middle of it the memory is the caller's again: nothing more may be put into it, and what he puts into it must
   * not be sent. Node has been told to, and cannot be told otherwise but by ending the connection.
   */
  function giveUp(call: Call): void {
    const isUnsent = call.lends && pending.get(call.xid) === call && (connection?.sender.queued ?? 0) > 0;
    if (receiving === call || isUnsent) {
      receiving = undefined;
      connection?.reset();
    }
    if (call.sent && pending.get(call.xid) === call) wasGivenUp = true;
    drop(call);
  }

  function fail(call: Call, error: unknown): void {
    drop(call);
    call.reject(error);
  }

  const encode = createEncode(parts.credential, () => isCopying);

  function send(call: Call, isCopied = false): void {
    if (connection === undefined) return void keepConnected();
    try {
      const { sender } = connection;
      isCopying = isCopied;
      sender.record(encode, call);
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

  const handlers = createReplies(pending, drop, {
    answered: () => {
      wasFruitless = false;
      turnedAway = 0;
      patience = 1;
    },
    decoded: (call, result) => resending.answered(call, result),
    receiving: (call) => {
      receiving = call;
    },
    expectsHead: () => reads > 0,
  });

  const doubts = createDoubts(parts);
  const resending = createResending({
    clock,
    pending,
    send,
    fail,
    runsOnMs: parts.stallMs,
    closing,
    ask: parts.ask,
    look: parts.look,
    verifiers: parts.verifiers,
    isBacklogged: () => (connection?.sender.queued ?? 0) > 0,
  });

  async function pause(): Promise<void> {
    const ms = withJitter(backOff);
    backOff = Math.min(backOff * 2, longestBackOffMs);
    await clock.sleep(ms, closing).catch(() => undefined);
  }

  /** Undefined: no pending call needs to be recognised by the server. */
  function lastToMatch(): LastConnection | undefined {
    if (last === undefined || !pending.values().some(isSentMutation)) return undefined;
    const onRefused = (): void => {
      wasDown = true;
    };
    return { ...last, isAwaited: clock.elapsed() - lostAt < awaitPortMs, onRefused };
  }

  /** Connects, and sends what has no reply. */
  async function keepConnected(): Promise<void> {
    if (isDialing || closing.aborted) return;
    isDialing = true;
    // A server that takes connections only to end them is not to be run against without a pause.
    if (wasFruitless && clock.elapsed() - connectedAt < longestBackOffMs) await pause();
    else backOff = firstBackOffMs;
    for (let round = 1; connection === undefined && pending.size > 0; round++) {
      try {
        connection = await parts.connect(handlers, lastToMatch());
      } catch (cause) {
        turnedAway = 0;
        // A port in use says nothing about the server, so it does not count as a round.
        if (isPortTaken(cause)) round--;
        const isOver = isHopeless(cause) || closing.aborted;
        for (const call of pending.values()) {
          // What the server may have done already is asked for until its deadline: a restart takes a moment.
          if (isOver || (round >= parts.dialRounds && !call.sent)) fail(call, cannotConnect(cause, call.sent));
        }
        if (pending.size > 0) await pause();
      }
    }
    isDialing = false;
    if (connection === undefined) return;
    wasFruitless = true;
    wasGivenUp = false;
    silentSince = undefined;
    received = 0;
    connectedAt = clock.elapsed();
    const current = connection;
    wasDown &&= current.address === last?.address;
    last = portOf(current);
    void current.ended.then((why) => lost(current, why));
    resending.connected(current, wasDown);
  }

  function lost(which: Connection, cause: Error): void {
    const isTurnedAway = which.isTurnedAway && clock.elapsed() - connectedAt < longestBackOffMs;
    // Reset it: after a normal close the port would stay in TIME_WAIT for a minute.
    which.reset();
    if (connection !== which) return;
    connection = receiving = undefined;
    lostAt = clock.elapsed();
    wasDown = false;
    const { sentOn } = resending;
    resending.lost();
    turnedAway = isTurnedAway ? turnedAway + 1 : 0;
    const why = turnedAway < mostTurnedAway ? cause : unanswered(cause);
    // A server that breaks the protocol would do so again.
    if (why instanceof RpcError && why.failure === 'garbled')
      for (const call of pending.values()) fail(call, garbled(why, call));
    // A server that rejects TLS has executed nothing from this connection. A server that just closes it may have.
    const wasSentBefore = (call: Call): boolean => call.resent || (call.sent && call.sentOn?.line !== sentOn?.line);
    if (isHopeless(why))
      for (const call of pending.values())
        fail(call, cannotConnect(why, isHopeless(cause) ? wasSentBefore(call) : call.sent));
    if (pending.size > 0) void keepConnected();
  }

  /** For how long nothing came, though something was asked. */
  function silence(now: number): number {
    if (connection === undefined) return 0;
    if (connection.received !== received) silentSince = undefined;
    received = connection.received;
    if (pending.size > 0) silentSince ??= now;
    return now - (silentSince ?? now);
  }

  async function doubt(silentMs: number): Promise<void> {
    const [doubted, [any]] = [connection, pending.values()];
    if (isDoubting || doubted === undefined || any === undefined) return;
    isDoubting = true;
    if (await doubts.isDead(doubted, any.procedure, silentMs)) {
      patience = Math.min(patience * 2, longestPatience);
      if (connection === doubted) doubted.reset();
    } else if (silence(clock.elapsed()) > silentMs)
      await clock.sleep(Math.min(silentMs, longestBackOffMs), closing).catch(() => undefined);
    isDoubting = false;
  }

  return {
    pending,
    start: (call) => {
      pending.add(call);
      if (call.procedure.head !== undefined) reads++;
      send(call);
    },
    giveUp,
    silence,
    repeat: resending.repeat,
    doubt: (silentMs) => {
      if (silence(clock.elapsed()) > silentMs * patience) void doubt(silentMs);
    },
    get address() {
      return connection?.address;
    },
    reconnect: () => connection?.reset(),
    close: () => (wasGivenUp ? connection?.reset() : connection?.close()),
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
    call.lends = data !== undefined;
    return data;
  };
}

const isHopeless = (cause: unknown): boolean => cause instanceof RpcError && cause.failure === 'tls';

const garbled = ({ message, cause }: RpcError, { sent }: Call): RpcError =>
  new RpcError(message, { failure: 'garbled', maybeDone: sent, cause });

const unanswered = (cause: Error): RpcError =>
  new RpcError(
    'the server ends encrypted connections without an answer: it may refuse the certificate of this client',
    {
      failure: 'tls',
      cause,
    },
  );

function cannotConnect(cause: unknown, sent: boolean): RpcError {
  const failure = cause instanceof RpcError ? cause.failure : 'unreachable';
  const message = cause instanceof Error ? cause.message : String(cause);
  return new RpcError(message, {
    failure: sent && failure === 'unreachable' ? 'lost' : failure,
    maybeDone: sent,
    cause,
  });
}
