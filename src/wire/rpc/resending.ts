import type { Clock } from '#base/clock.ts';
import type { Connection } from './connection.ts';
import { RpcError, type RpcFailure } from './errors.ts';
import type { Call } from './lane.ts';
import type { Pending } from './pending.ts';
import type { Incarnation, Procedure } from './procedure.ts';

/** The connection that a call was sent on: its endpoints, and the server's write verifier at that time. */
export interface SentOn {
  readonly endpoints: string;
  /** Undefined: no reply has carried a verifier yet. */
  incarnation: bigint | undefined;
}

export interface ResendingParts {
  readonly clock: Clock;
  readonly pending: Pending;
  /** `isCopied`: another copy of the call is in flight and may use the caller's buffer, so this one copies the data. */
  readonly send: (call: Call, isCopied?: boolean) => void;
  readonly fail: (call: Call, error: RpcError) => void;
  /** Makes a call on the lane's own connection. */
  readonly ask: (asked: Asked) => Promise<unknown>;
  /** The send queue is backed up. */
  readonly isBacklogged: () => boolean;
  /** How long calls from a lost connection may still run after the server answers again. */
  readonly runsOnMs: number;
  readonly closing: AbortSignal;
}

export interface Asked {
  readonly procedure: Procedure<unknown, unknown>;
  readonly args: unknown;
  /** Undefined: that of the lane. */
  readonly credential: Buffer | undefined;
  readonly deadlineMs: number;
}

/**
 * Decides which calls are resent on a new connection. Calls that change nothing always are. The others are resent only while the
 * server recognises them: same xid, same client address and port, same server address, same run of the server, within the time
 * for which servers remember what they have answered. Otherwise they fail with `RpcError.decide`: docs/designs/nfs-resends.md.
 */
export interface Resending {
  /** Resends pending calls on a new connection. `wasDown`: the server refused connections in between. */
  connected(connection: Connection, wasDown: boolean): void;
  lost(): void;
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
/** COMMIT may wait for a busy disk. After this time NULL shows whether the server answers at all. */
const askMs = 2_000;
const askPauseMs = 100;
/** A refusal is an answer, too. */
const silences: readonly RpcFailure[] = ['unreachable', 'lost', 'deadline', 'canceled', 'closed'];

export function createResending(parts: ResendingParts): Resending {
  const { clock, pending, send, fail, ask, isBacklogged, runsOnMs, closing } = parts;
  let current: SentOn | undefined;
  // How to ask for the verifier again: the procedure, the file and the user of the last reply that carried one.
  let telling: Incarnation | undefined;
  let witness: unknown;
  let witnessedAs: Buffer | undefined;
  let repeatAt = Number.POSITIVE_INFINITY;
  let repeatMs = firstRepeatMs;

  const isAnswered = (asked: Omit<Asked, 'deadlineMs'>): Promise<boolean> =>
    ask({ ...asked, deadlineMs: askMs }).then(
      () => true,
      (cause: unknown) => !(cause instanceof RpcError && silences.includes(cause.failure)),
    );

  /** Resolves when the server has answered. The verifier stays unknown if no file is known or COMMIT fails. */
  async function heard(on: SentOn, { procedure: { program, version } }: Call): Promise<void> {
    const nothing: Procedure<unknown, unknown> = {
      ...{ program, version, number: 0, name: 'NULL', encode: () => undefined, decode: () => undefined },
    };
    while (current === on && !closing.aborted) {
      // `answered` notes what the reply says.
      if (telling !== undefined && (await isAnswered({ ...telling.ask(witness), credential: witnessedAs }))) return;
      if (current === on && (await isAnswered({ procedure: nothing, args: undefined, credential: undefined }))) return;
      await clock.sleep(askPauseMs, closing).catch(() => undefined);
    }
  }

  function resend(call: Call, on: SentOn, wasDown: boolean): void {
    const before = call.sentOn;
    if (pending.get(call.xid) !== call || before === undefined) return;
    const isOther = isOtherRun(before, on);
    const isRecognised = before.endpoints === on.endpoints && clock.elapsed() - call.since < recognisedMs;
    if (isOther || !isRecognised)
      return void fail(call, undecided(call, isOther && wasDown ? 0 : clock.elapsed() + runsOnMs));
    send(call);
    // Keep the old verifier if this connection has not reported one.
    if (on.incarnation === undefined) call.sentOn = before;
  }

  async function resendAll(calls: readonly [Call, ...Call[]], on: SentOn, wasDown: boolean): Promise<void> {
    await heard(on, calls[0]);
    // The connection was lost again; the next one starts over with all calls.
    if (current !== on) return;
    for (const call of calls) resend(call, on, wasDown);
    repeatMs = firstRepeatMs;
    repeatAt = clock.elapsed() + repeatMs;
  }

  return {
    connected: ({ endpoints }, wasDown) => {
      const on: SentOn = { endpoints, incarnation: undefined };
      current = on;
      const waiting = pending.values();
      const [first, ...more] = waiting.filter(isSentMutation);
      for (const call of waiting) if (!isSentMutation(call)) send(call);
      if (first !== undefined) void resendAll([first, ...more], on, wasDown);
    },
    lost: () => {
      current = undefined;
    },
    get sentOn() {
      return current;
    },
    answered: (call, result) => {
      const { incarnation } = call.procedure;
      if (incarnation === undefined || current === undefined) return;
      current.incarnation = incarnation.of(result);
      telling = incarnation;
      witness = incarnation.witness(call.args);
      witnessedAs = call.credential;
    },
    repeat: (now) => {
      if (now < repeatAt || current === undefined) return;
      repeatMs = Math.min(repeatMs * 2, longestRepeatMs);
      repeatAt = now + repeatMs;
      const { endpoints } = current;
      const open = pending
        .values()
        .filter((call) => isCached(call) && call.resent && call.sentOn?.endpoints === endpoints);
      if (open.length === 0) repeatAt = Number.POSITIVE_INFINITY;
      if (isBacklogged()) return;
      for (const call of open) {
        // The server may have answered on the lost connection, and have forgotten that by now.
        if (isSentMutation(call) && now - call.since >= recognisedMs) fail(call, undecided(call, now + runsOnMs));
        else send(call, true);
      }
    },
  };
}

/** Servers keep the answer, and drop copies while they work on the first. */
const isCached = ({ procedure }: Call): boolean => procedure.mutates !== undefined;

/** The call may have reached the server, so the server must recognise it if it is resent. */
export const isSentMutation = ({ sentOn, procedure, args }: Call): boolean =>
  sentOn !== undefined && procedure.mutates?.(args) === true;

/** The verifier changed: the server restarted, another server answers, or (on Linux) a write failed. */
const isOtherRun = (before: SentOn, now: SentOn): boolean =>
  before.incarnation !== undefined && now.incarnation !== undefined && before.incarnation !== now.incarnation;

const undecided = ({ procedure, expires }: Call, after: number): RpcError =>
  new RpcError(`${procedure.name}: the connection was lost, and whether the server has done it is not known`, {
    ...{ failure: 'lost', maybeDone: true, decide: { after, before: expires } },
  });
