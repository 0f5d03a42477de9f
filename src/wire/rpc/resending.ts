import type { Clock } from '#base/clock.ts';
import type { Connection } from './connection.ts';
import { RpcError, type RpcFailure } from './errors.ts';
import type { Pending } from './pending-calls.ts';
import type { Procedure } from './procedure.ts';
import type { Call } from './transport.ts';
import type { Known, Question, Verifiers } from './verifiers.ts';

/** A connection, and the verifier that the server has reported on it. */
export interface Line {
  readonly endpoints: string;
  verifier: bigint | undefined;
}

/** The connection that a call was sent on. */
export interface SentOn {
  readonly line: Line;
  /** What the server had reported on any connection when the call was sent. Undefined: nothing yet. */
  readonly verifier: bigint | undefined;
}

export interface ResendingParts {
  readonly clock: Clock;
  readonly pending: Pending;
  readonly verifiers: Verifiers;
  /** `isCopied`: another copy of the call is in flight and may use the caller's buffer, so this one copies the data. */
  readonly send: (call: Call, isCopied?: boolean) => void;
  readonly fail: (call: Call, error: RpcError) => void;
  /** Makes a call on the lane's own connection. */
  readonly ask: (asked: Asked) => Promise<unknown>;
  /** Asks the server on the lane's own connection: `CallOptions.isUndone`. */
  readonly look: (call: Call) => Promise<boolean | undefined>;
  /** The send queue is backed up. */
  readonly isBacklogged: () => boolean;
  /** How long calls from a lost connection may still run after the server answers again. */
  readonly runsOnMs: number;
  readonly closing: AbortSignal;
}

export interface Asked extends Question {
  readonly deadlineMs: number;
}

/**
 * Decides which calls are resent on a new connection. Calls that change nothing always are. The others are resent only while the
 * server recognises them: same xid, same client address and port, same server address, same run of the server, within the time
 * for which servers remember what they have answered. Otherwise they fail with `RpcError.decide`. If it is not known whether the
 * server restarted, a call that takes a name away is resent only if the name still refers to the same file:
 * docs/designs/nfs-resends.md.
 */
export interface Resending {
  /** Resends pending calls on a new connection. `wasDown`: the server refused connections in between. */
  connected(connection: Pick<Connection, 'endpoints' | 'address'>, wasDown: boolean): void;
  lost(): void;
  /** Of the current connection. */
  readonly sentOn: SentOn | undefined;
  answered(call: Call, result: unknown): void;
  /** Repeats resent calls that have no reply. Call it periodically. */
  repeat(now: number): void;
}

/** Linux forgets an answer after 120 s. */
const recognisedMs = 100_000;
/**
 * A server drops the copy of a call that it is still working on, and the reply goes to the old connection. So the copy has to be sent again
 * for the reply to come here.
 */
const firstRepeatMs = 5_000;
const longestRepeatMs = 30_000;
/** After this time NULL shows whether the server answers at all. Long for a busy server: without the verifier, calls may have to wait. */
const askVerifierMs = 5_000;
const askMs = 2_000;
const askPauseMs = 100;
/** A refusal is an answer, too. */
const silences: readonly RpcFailure[] = ['unreachable', 'lost', 'deadline', 'canceled', 'closed'];

export function createResending(parts: ResendingParts): Resending {
  const { clock, pending, verifiers, send, fail, ask, look, isBacklogged, runsOnMs, closing } = parts;
  let line: Line | undefined;
  let known: Known = { verifier: undefined };
  let current: SentOn | undefined;
  /** Calls since whose sending the server has refused a connection; also if it is lost again before they are resent. */
  const sentBeforeRefusal = new WeakSet<Call>();
  let repeatAt = Number.POSITIVE_INFINITY;
  let repeatMs = firstRepeatMs;

  const isAnswered = (question: Question, deadlineMs: number): Promise<boolean> =>
    ask({ ...question, deadlineMs }).then(
      () => true,
      (cause: unknown) => !(cause instanceof RpcError && silences.includes(cause.failure)),
    );

  /** Asks for the verifier until one question is answered with it. A file that is gone by now has none. */
  async function isVerifierAsked(on: Line): Promise<boolean> {
    for (const question of verifiers.questions()) {
      // `answered` notes what the reply says.
      if (line !== on || !(await isAnswered(question, askVerifierMs))) return false;
      if (on.verifier !== undefined) return true;
    }
    return false;
  }

  /** Resolves when the server has answered. The verifier stays unknown if no file is known or the server refuses the question. */
  async function heard(on: Line, { procedure: { program, version } }: Call): Promise<void> {
    const nothing: Procedure<unknown, unknown> = {
      program,
      version,
      number: 0,
      name: 'NULL',
      encode: () => undefined,
      decode: () => undefined,
    };
    while (line === on && !closing.aborted) {
      if (await isVerifierAsked(on)) return;
      const question = { procedure: nothing, args: undefined, credential: undefined };
      if (line === on && (await isAnswered(question, askMs))) return;
      await clock.sleep(askPauseMs, closing).catch(() => undefined);
    }
  }

  const decideLater = (call: Call): void => fail(call, undecided(call, clock.elapsed() + runsOnMs));

  /** Until this connection has reported a verifier, the one before stays the one to compare with. */
  function sendCopy(call: Call, sentOn: SentOn, isCopied = false): void {
    send(call, isCopied);
    call.sentOn = sentOn;
  }

  function resend(call: Call, on: Line, wasDown: boolean): void {
    const { sentOn } = call;
    if (pending.get(call.xid) !== call || sentOn === undefined) return;
    const before = sentOn.line.verifier ?? sentOn.verifier;
    const isKnown = before !== undefined && on.verifier !== undefined;
    const isOther = isKnown && before !== on.verifier;
    // What another connection reported may be older than this one, and proves nothing about when the server restarted.
    const isGone = isOther && wasDown && sentOn.line.verifier !== undefined;
    const isRecognised = sentOn.line.endpoints === on.endpoints && clock.elapsed() - call.since < recognisedMs;
    if (isGone) fail(call, undecided(call, 0));
    else if (isOther || !isRecognised) decideLater(call);
    else if (isKnown || call.isUndone === undefined) sendCopy(call, { line: on, verifier: before });
    else void resendIfUndone(call, { line: on, verifier: before });
  }

  /** The server may have restarted, and have executed the call before that. */
  async function resendIfUndone(call: Call, sentOn: SentOn): Promise<void> {
    const isUndone = await look(call).catch(() => false);
    // The connection was lost again; the next one starts over.
    if (line !== sentOn.line || pending.get(call.xid) !== call) return;
    if (!(isUndone ?? !sentBeforeRefusal.has(call))) return decideLater(call);
    sendCopy(call, sentOn);
    repeatSoon();
  }

  async function resendAll(calls: readonly [Call, ...Call[]], on: Line, wasDown: boolean): Promise<void> {
    await heard(on, calls[0]);
    // The connection was lost again; the next one starts over with all calls.
    if (line !== on) return;
    for (const call of calls) resend(call, on, wasDown);
    repeatSoon();
  }

  function repeatSoon(): void {
    repeatMs = firstRepeatMs;
    repeatAt = clock.elapsed() + repeatMs;
  }

  return {
    connected: ({ endpoints, address }, wasDown) => {
      const on: Line = { endpoints, verifier: undefined };
      line = on;
      known = verifiers.at(address);
      current = { line: on, verifier: known.verifier };
      const waiting = pending.values();
      const [first, ...more] = waiting.filter(isSentMutation);
      if (wasDown) for (const call of waiting) if (isSentMutation(call)) sentBeforeRefusal.add(call);
      if (waiting.some((call) => isCached(call) && call.sent)) repeatSoon();
      for (const call of waiting) if (!isSentMutation(call)) send(call);
      if (first !== undefined) void resendAll([first, ...more], on, wasDown);
    },
    lost: () => {
      line = current = undefined;
    },
    get sentOn() {
      // A call gets what is known when it is sent. What another connection reports later may be the server's next run.
      if (current !== undefined && current.verifier !== known.verifier)
        current = { line: current.line, verifier: known.verifier };
      return current;
    },
    answered: (call, result) => {
      const { incarnation } = call.procedure;
      if (incarnation === undefined || line === undefined) return;
      const verifier = incarnation.of(result);
      line.verifier = verifier;
      verifiers.note(known, verifier, incarnation, call);
    },
    repeat: (now) => {
      if (now < repeatAt || line === undefined) return;
      repeatMs = Math.min(repeatMs * 2, longestRepeatMs);
      repeatAt = now + repeatMs;
      const open = pending.values().filter((call) => isCached(call) && call.resent && call.sentOn?.line === line);
      if (open.length === 0) repeatAt = Number.POSITIVE_INFINITY;
      if (isBacklogged()) return;
      for (const call of open) {
        // The server may have answered on the lost connection, and have forgotten that by now.
        if (isSentMutation(call) && now - call.since >= recognisedMs) decideLater(call);
        else if (call.sentOn !== undefined) sendCopy(call, call.sentOn, true);
      }
    },
  };
}

/** Servers keep the answer, and drop copies while they work on the first. */
const isCached = ({ procedure }: Call): boolean => procedure.mutates !== undefined;

/** The call may have reached the server, so the server must recognise it if it is resent. */
export const isSentMutation = ({ sentOn, procedure, args }: Call): boolean =>
  sentOn !== undefined && procedure.mutates?.(args) === true;

const undecided = ({ procedure, expires }: Call, after: number): RpcError =>
  new RpcError(`${procedure.name}: the connection was lost, and whether the server has done it is not known`, {
    failure: 'lost',
    maybeDone: true,
    decide: { after, before: expires },
  });
