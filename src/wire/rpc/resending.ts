import type { Clock } from '#base/clock.ts';
import type { Connection } from './connection.ts';
import { RpcError } from './errors.ts';
import type { Call } from './lane.ts';
import type { Pending } from './pending.ts';
import type { Incarnation, Procedure } from './procedure.ts';

/** One connection as calls remember it: where the server saw them come from, and which run of the server got them. */
export interface SentOn {
  readonly endpoints: string;
  /** Undefined: no reply has told yet. */
  incarnation: bigint | undefined;
}

export interface ResendingParts {
  readonly clock: Clock;
  readonly pending: Pending;
  readonly send: (call: Call) => void;
  readonly fail: (call: Call, error: RpcError) => void;
  /** Makes a call on the lane's own connection. */
  readonly ask: (
    procedure: Procedure<unknown, unknown>,
    args: unknown,
    credential: Buffer | undefined,
  ) => Promise<unknown>;
  /** The server's machine takes nothing at the moment. */
  readonly isBacklogged: () => boolean;
  /** How long after the end of a connection what was sent on it may still run. */
  readonly runsOnMs: number;
}

/**
 * Decides which calls are resent on a new connection. Calls that change nothing always are. The others are resent only while the
 * server recognises them: same xid, same client address and port, same server address, same run of the server, within the time
 * for which servers remember what they have answered. Otherwise they fail with `RpcError.decide`: docs/designs/nfs-resends.md.
 */
export interface Resending {
  /** Begins a connection; the calls that wait are sent on it, some of them later. */
  connected(connection: Connection): void;
  lost(): void;
  readonly sentOn: SentOn | undefined;
  answered(call: Call, result: unknown): void;
  /** To be called now and then: repeats resent calls that have no reply. */
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

export function createResending(parts: ResendingParts): Resending {
  const { clock, pending, send, fail, ask, isBacklogged, runsOnMs } = parts;
  let current: SentOn | undefined;
  let lostAt = 0;
  // The last call whose reply told the incarnation: how to ask for it, about which file, and as whom.
  let asked: Incarnation | undefined;
  let witness: unknown;
  let witnessedAs: Buffer | undefined;
  let repeatAt = Number.POSITIVE_INFINITY;
  let repeatMs = firstRepeatMs;

  /** Leaves it undefined if no file is known, or the server does not tell. */
  async function learnIncarnation(): Promise<void> {
    if (asked === undefined) return;
    const { procedure, args } = asked.ask(witness);
    // `answered` notes what the reply says.
    await ask(procedure, args, witnessedAs).catch(() => undefined);
  }

  function resend(call: Call, on: SentOn): void {
    const before = call.sentOn;
    if (pending.get(call.xid) !== call || before === undefined) return;
    const isRecognised = before.endpoints === on.endpoints && clock.elapsed() - call.since < recognisedMs;
    if (hasRestarted(before, on)) fail(call, undecided(call, 0));
    else if (isRecognised) send(call);
    else fail(call, undecided(call, lostAt + runsOnMs));
  }

  async function resendAll(calls: readonly Call[], on: SentOn): Promise<void> {
    await learnIncarnation();
    // Lost again: the next connection begins with all of them.
    if (current !== on) return;
    for (const call of calls) resend(call, on);
    repeatMs = firstRepeatMs;
    repeatAt = clock.elapsed() + repeatMs;
  }

  return {
    connected: ({ endpoints }) => {
      const on: SentOn = { endpoints, incarnation: undefined };
      current = on;
      const waiting = pending.values();
      const mutating = waiting.filter(isSentMutation);
      for (const call of waiting) if (!isSentMutation(call)) send(call);
      if (mutating.length > 0) void resendAll(mutating, on);
      else void learnIncarnation();
    },
    lost: () => {
      current = undefined;
      lostAt = clock.elapsed();
    },
    get sentOn() {
      return current;
    },
    answered: (call, result) => {
      const { incarnation } = call.procedure;
      if (incarnation === undefined || current === undefined) return;
      current.incarnation = incarnation.of(result);
      asked = incarnation;
      witness = incarnation.witness(call.args);
      witnessedAs = call.credential;
    },
    repeat: (now) => {
      if (now < repeatAt || current === undefined) return;
      const isOpen = (call: Call): boolean =>
        call.resent && call.sentOn === current && isSentMutation(call) && now - call.since < recognisedMs;
      const open = pending.values().filter(isOpen);
      repeatMs = Math.min(repeatMs * 2, longestRepeatMs);
      repeatAt = open.length > 0 ? now + repeatMs : Number.POSITIVE_INFINITY;
      if (!isBacklogged()) for (const call of open) send(call);
    },
  };
}

/** It may have reached the server, and has to be recognised if it is sent again. */
export const isSentMutation = ({ sentOn, procedure, args }: Call): boolean =>
  sentOn !== undefined && procedure.mutates?.(args) === true;

const hasRestarted = (before: SentOn, now: SentOn): boolean =>
  before.incarnation !== undefined && now.incarnation !== undefined && before.incarnation !== now.incarnation;

const undecided = ({ procedure, expires }: Call, after: number): RpcError =>
  new RpcError(`${procedure.name}: the connection was lost, and whether the server has done it is not known`, {
    ...{ failure: 'lost', maybeDone: true, decide: { after, before: expires } },
  });
