import type { Clock } from '#base/clock.ts';
import type { Connection } from './connection.ts';
import { RpcError, type RpcFailure } from './errors.ts';
import type { PendingCalls } from './pending-calls.ts';
import type { Procedure } from './procedure.ts';
import type { Call } from './transport.ts';
import type { KnownVerifier, VerifierQuery, Verifiers } from './verifiers.ts';

/** A connection, and the verifier that the server has reported on it. */
export interface ConnectionState {
  readonly endpoints: string;
  verifier: bigint | undefined;
}

/** The connection on which a call was sent. */
export interface SentOn {
  readonly connection: ConnectionState;
  /** What the server had reported on any connection when the call was sent. Undefined: nothing yet. */
  readonly verifier: bigint | undefined;
}

export interface ResendingOptions {
  readonly clock: Clock;
  readonly pending: PendingCalls;
  readonly verifiers: Verifiers;
  /** `isCopied`: another copy of the call is in flight and may use the caller's buffer, so this one copies the data. */
  readonly send: (call: Call, isCopied?: boolean) => void;
  readonly fail: (call: Call, error: RpcError) => void;
  /** Makes a call on the transport's own connection. */
  readonly call: (asked: VerifierCall) => Promise<unknown>;
  /** Runs `CallOptions.isNotExecuted` on the transport's own connection. */
  readonly isNotExecuted: (call: Call) => Promise<boolean | undefined>;
  /** The send queue is backed up. */
  readonly isBacklogged: () => boolean;
  /** How long calls from a lost connection may still run after the server answers again. */
  readonly lateCallMs: number;
  readonly closing: AbortSignal;
}

export interface VerifierCall extends VerifierQuery {
  readonly deadlineMs: number;
}

/**
 * Decides which calls the client resends on a new connection. Calls that change nothing are always resent. The others are resent
 * only while the server recognises them: same xid, same client address and port, same server address, no restart of the server,
 * and within the time for which servers keep replies. Otherwise they fail with `RpcError.outcomeCheck`. If the client does not
 * know whether the server restarted, it resends a call that removes a name only if the name still refers to the same file:
 * docs/designs/nfs-resends.md.
 */
export interface Resending {
  /** Resends pending calls on a new connection. `wasDown`: the server refused a connection after the loss of the previous one. */
  connected(connection: Pick<Connection, 'endpoints' | 'address'>, wasDown: boolean): void;
  lost(): void;
  /** The `SentOn` for calls that are sent now. */
  readonly sentOn: SentOn | undefined;
  answered(call: Call, result: unknown): void;
  /** Repeats resent calls that have no reply. Call it periodically. */
  repeat(now: number): void;
}

/** Linux drops a reply from its cache after 120 s. */
const replayCacheMs = 100_000;
/**
 * While a server executes a call, it drops further copies, and the reply goes to the old connection. So the client has to send
 * another copy later to get the reply here.
 */
const firstRepeatMs = 5_000;
const maxRepeatMs = 30_000;
/**
 * A server can lose a call and go on answering others; nfs-ganesha does under load. After this time without a reply, the same connection
 * gets another copy, as with the Linux client's `timeo`. The next copies follow after 2, 4, 8 … minutes.
 */
const copyUnansweredAfterMs = 60_000;
const maxCopyIntervalMs = 600_000;
const unansweredCheckMs = 5_000;
/**
 * After this time without a verifier, NULL shows whether the server answers at all. It is long enough for a busy server, since calls
 * may have to wait if the verifier is unknown.
 */
const verifierQueryMs = 5_000;
const nullCallMs = 2_000;
const nullCallPauseMs = 100;
/** Failures without a reply of the server. */
const failuresWithoutAnswer: readonly RpcFailure[] = ['unreachable', 'lost', 'deadline', 'canceled', 'closed'];

export function createResending(options: ResendingOptions): Resending {
  const {
    clock,
    pending,
    verifiers,
    send,
    fail,
    call: ask,
    isNotExecuted,
    isBacklogged,
    lateCallMs,
    closing,
  } = options;
  let connection: ConnectionState | undefined;
  let knownVerifier: KnownVerifier = { verifier: undefined };
  let currentSentOn: SentOn | undefined;
  /**
   * Calls that were sent before the server refused a connection; kept also if the connection is lost again before they are
   * resent.
   */
  const sentBeforeRefusal = new WeakSet<Call>();
  let repeatAt = Number.POSITIVE_INFINITY;
  let repeatMs = firstRepeatMs;
  /** When unanswered calls get another copy, if not `unansweredMs` after their start. */
  const nextCopyAt = new WeakMap<Call, number>();
  let unansweredCheckAt = 0;

  const isAnswered = (query: VerifierQuery, deadlineMs: number): Promise<boolean> =>
    ask({ ...query, deadlineMs }).then(
      () => true,
      (cause: unknown) => !(cause instanceof RpcError && failuresWithoutAnswer.includes(cause.failure)),
    );

  /** Sends verifier queries until one reply has a verifier. A query for a deleted file has none. */
  async function queryVerifier(current: ConnectionState): Promise<boolean> {
    for (const query of verifiers.queries()) {
      // `answered` records the verifier of the reply.
      if (connection !== current || !(await isAnswered(query, verifierQueryMs))) return false;
      if (current.verifier !== undefined) return true;
    }
    return false;
  }

  /** Resolves when the server has answered. The verifier stays unknown if no file is known or the server rejects the query. */
  async function waitForAnswer(current: ConnectionState, { procedure: { program, version } }: Call): Promise<void> {
    const nullProcedure: Procedure<unknown, unknown> = {
      program,
      version,
      number: 0,
      name: 'NULL',
      encode: () => undefined,
      decode: () => undefined,
    };
    while (connection === current && !closing.aborted) {
      if (await queryVerifier(current)) return;
      const query = { procedure: nullProcedure, args: undefined, credential: undefined };
      if (connection === current && (await isAnswered(query, nullCallMs))) return;
      await clock.sleep(nullCallPauseMs, closing).catch(() => undefined);
    }
  }

  const failUndecided = (call: Call): void => fail(call, undecidedError(call, clock.elapsed() + lateCallMs));

  /** `sentOn` has the verifier to compare with until the server reports one on this connection. */
  function sendCopy(call: Call, sentOn: SentOn, isCopied = false): void {
    send(call, isCopied);
    call.sentOn = sentOn;
  }

  function resend(call: Call, current: ConnectionState, wasDown: boolean): void {
    const { sentOn } = call;
    if (pending.get(call.xid) !== call || sentOn === undefined) return;
    const previousVerifier = sentOn.connection.verifier ?? sentOn.verifier;
    const isComparable = previousVerifier !== undefined && current.verifier !== undefined;
    const hasChanged = isComparable && previousVerifier !== current.verifier;
    // A verifier from another connection may be older, and does not show when the server restarted.
    const isNeverExecuted = hasChanged && wasDown && sentOn.connection.verifier !== undefined;
    const isRecognised =
      sentOn.connection.endpoints === current.endpoints && clock.elapsed() - call.startedAt < replayCacheMs;
    if (isNeverExecuted) fail(call, undecidedError(call, 0));
    else if (hasChanged || !isRecognised) failUndecided(call);
    else if (isComparable || call.isNotExecuted === undefined)
      sendCopy(call, { connection: current, verifier: previousVerifier });
    else void resendIfNotExecuted(call, { connection: current, verifier: previousVerifier });
  }

  /** For the case that the server may have restarted, and may have executed the call before the restart. */
  async function resendIfNotExecuted(call: Call, sentOn: SentOn): Promise<void> {
    const notExecuted = await isNotExecuted(call).catch(() => false);
    // The connection was lost again; the next one starts over.
    if (connection !== sentOn.connection || pending.get(call.xid) !== call) return;
    if (!(notExecuted ?? !sentBeforeRefusal.has(call))) return failUndecided(call);
    sendCopy(call, sentOn);
    scheduleFirstRepeat();
  }

  async function resendAll(
    calls: readonly [Call, ...Call[]],
    current: ConnectionState,
    wasDown: boolean,
  ): Promise<void> {
    await waitForAnswer(current, calls[0]);
    // The connection was lost again; the next one starts over with all calls.
    if (connection !== current) return;
    for (const call of calls) resend(call, current, wasDown);
    scheduleFirstRepeat();
  }

  function scheduleFirstRepeat(): void {
    repeatMs = firstRepeatMs;
    repeatAt = clock.elapsed() + repeatMs;
  }

  function repeatResent(now: number): void {
    if (now < repeatAt) return;
    repeatMs = Math.min(repeatMs * 2, maxRepeatMs);
    repeatAt = now + repeatMs;
    const resentCalls = callsOnConnection().filter((call) => isInReplayCache(call) && call.resent);
    if (resentCalls.length === 0) repeatAt = Number.POSITIVE_INFINITY;
    if (isBacklogged()) return;
    for (const call of resentCalls) {
      // The server may have replied on the lost connection, and dropped the reply from its cache since.
      if (isSentMutation(call) && now - call.startedAt >= replayCacheMs) failUndecided(call);
      else if (call.sentOn !== undefined) sendCopy(call, call.sentOn, true);
    }
  }

  /** Skips mutations: a slow server without a replay cache would execute both copies. */
  function repeatUnanswered(now: number): void {
    if (now < unansweredCheckAt || isBacklogged()) return;
    unansweredCheckAt = now + unansweredCheckMs;
    for (const call of callsOnConnection()) {
      const isDue = now >= (nextCopyAt.get(call) ?? call.startedAt + copyUnansweredAfterMs);
      if (!isDue || call.isInternal || isSentMutation(call) || call.sentOn === undefined) continue;
      nextCopyAt.set(call, now + Math.min(now - call.startedAt, maxCopyIntervalMs));
      sendCopy(call, call.sentOn, true);
    }
  }

  const callsOnConnection = (): readonly Call[] =>
    pending.values().filter(({ sentOn }) => sentOn !== undefined && sentOn.connection === connection);

  return {
    connected: ({ endpoints, address }, wasDown) => {
      const current: ConnectionState = { endpoints, verifier: undefined };
      connection = current;
      knownVerifier = verifiers.forAddress(address);
      currentSentOn = { connection: current, verifier: knownVerifier.verifier };
      const pendingCalls = pending.values();
      for (const call of pendingCalls) nextCopyAt.set(call, clock.elapsed() + copyUnansweredAfterMs);
      const [first, ...more] = pendingCalls.filter(isSentMutation);
      if (wasDown) for (const call of pendingCalls) if (isSentMutation(call)) sentBeforeRefusal.add(call);
      if (pendingCalls.some((call) => isInReplayCache(call) && call.sent)) scheduleFirstRepeat();
      for (const call of pendingCalls) if (!isSentMutation(call)) send(call);
      if (first !== undefined) void resendAll([first, ...more], current, wasDown);
    },
    lost: () => {
      connection = currentSentOn = undefined;
    },
    get sentOn() {
      // A call keeps the verifier that was known when it was sent. Another connection may later report one from after a restart.
      if (currentSentOn !== undefined && currentSentOn.verifier !== knownVerifier.verifier)
        currentSentOn = { connection: currentSentOn.connection, verifier: knownVerifier.verifier };
      return currentSentOn;
    },
    answered: (call, result) => {
      const { serverVerifier } = call.procedure;
      if (serverVerifier === undefined || connection === undefined) return;
      const verifier = serverVerifier.verifierOf(result);
      connection.verifier = verifier;
      verifiers.record(knownVerifier, verifier, serverVerifier, call);
    },
    repeat: (now) => {
      if (connection === undefined) return;
      repeatResent(now);
      repeatUnanswered(now);
    },
  };
}

/** Servers keep the replies to these calls, and drop copies while they execute the first. */
const isInReplayCache = ({ procedure }: Call): boolean => procedure.mutates !== undefined;

/** Whether the call mutates and may have reached the server, so that the server must recognise a resent copy. */
export const isSentMutation = ({ sentOn, procedure, args }: Call): boolean =>
  sentOn !== undefined && procedure.mutates?.(args) === true;

const undecidedError = ({ procedure, expiresAt }: Call, after: number): RpcError =>
  new RpcError(`${procedure.name}: the connection was lost, and it is not known whether the server executed the call`, {
    failure: 'lost',
    maybeDone: true,
    outcomeCheck: { notBefore: after, deadline: expiresAt },
  });
