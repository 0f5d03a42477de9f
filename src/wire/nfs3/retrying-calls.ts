import type { Clock } from '#base/clock.ts';
import type { CallOptions, Recover, RpcClient } from '../rpc/client.ts';
import { RpcError } from '../rpc/errors.ts';
import type { Procedure } from '../rpc/procedure.ts';
import { isNfsError, NfsError, nfsStatus } from './status.ts';

type OnError<R> = (cause: unknown) => R | Promise<R>;

/** A call that changes something. */
export interface Mutation<A, R> {
  readonly procedure: Procedure<A, R>;
  readonly args: A;
  readonly options: CallOptions | undefined;
  /**
   * Called after the connection was lost if the server would not recognise the call. Returns the result if the server executed the call,
   * and undefined if it did not or if repeating it is safe. Throws `unknown` if that cannot be determined.
   */
  readonly findOutcome?: ((options: CallOptions, unknown: RpcError) => Promise<R | undefined>) | undefined;
}

/** Makes NFS calls. Retries JUKEBOX and resolves lost mutations. `onError` handles an error: it returns a result or throws. */
export interface RetryingCalls {
  call<A, R>(procedure: Procedure<A, R>, args: A, options: CallOptions | undefined, onError?: OnError<R>): Promise<R>;
  mutate<A, R>(mutation: Mutation<A, R>, onError?: OnError<R>): Promise<R>;
}

/**
 * The pauses before the retries after JUKEBOX (try later, for example during a tape load or a quota count), within the deadline.
 */
const jukeboxPausesMs = [100, 200, 400, 800, 1600, 3200, 5000] as const;

const never = new AbortController().signal;
const firstBackOffMs = 100;
const maxBackOffMs = 5_000;

export function createRetryingCalls(rpc: Pick<RpcClient, 'call'>, clock: Clock): RetryingCalls {
  async function retryJukebox<A, R>(
    { procedure, args, options }: Mutation<A, R>,
    startedAt: number,
    refusal: NfsError,
  ): Promise<R> {
    const { signal = never, deadlineMs } = options ?? {};
    for (const pause of jukeboxPausesMs) {
      const remainingMs = deadlineMs && deadlineMs - pause - (clock.elapsed() - startedAt);
      if (remainingMs !== undefined && remainingMs <= 0) break;
      await clock.sleep(pause, signal);
      try {
        return await rpc.call(procedure, args, { ...options, deadlineMs: remainingMs });
      } catch (cause) {
        if (isNfsError(cause, 'JUKEBOX')) continue;
        throw refusal.resent ? markResent(cause) : cause;
      }
    }
    throw refusal;
  }

  /**
   * Waits until the first copy is no longer expected to run, asks the server whether it ran, and repeats the call if it did not. Errors
   * on the way leave the outcome unknown: the first copy may have run, whatever a later attempt returns.
   */
  async function resolveOutcome<A, R>(mutation: Mutation<A, R>, first: RpcError): Promise<R> {
    const { procedure, options } = mutation;
    const deadline = first.outcomeCheck?.deadline ?? 0;
    let notBefore = first.outcomeCheck?.notBefore ?? 0;
    for (let backOff = firstBackOffMs; ; backOff = Math.min(backOff * 2, maxBackOffMs)) {
      const wait = Math.max(0, notBefore - clock.elapsed());
      if (clock.elapsed() + wait >= deadline) throw first;
      await pause(wait, procedure.name, options?.signal ?? never);
      try {
        return await checkAndRepeat(mutation, deadline, first);
      } catch (cause) {
        if (cause === first || !isUnanswered(cause)) throw asMaybeDone(cause);
        notBefore = outcomeCheckOf(cause)?.notBefore ?? clock.elapsed() + backOff;
      }
    }
  }

  async function checkAndRepeat<A, R>(mutation: Mutation<A, R>, deadline: number, first: RpcError): Promise<R> {
    const { procedure, args, options, findOutcome } = mutation;
    const optionsUntilDeadline = (): CallOptions => ({ ...options, deadlineMs: deadline - clock.elapsed() });
    const done = await findOutcome?.(optionsUntilDeadline(), first).catch((cause: unknown) => {
      // Callers handle STALE and BADHANDLE of the directory. Other errors of the lookup do not decide the outcome.
      throw cause instanceof NfsError && !isNfsError(cause, 'JUKEBOX', 'STALE', 'BADHANDLE') ? first : cause;
    });
    if (done !== undefined) return done;
    try {
      return await rpc.call(procedure, args, optionsUntilDeadline());
    } catch (cause) {
      throw markResent(cause);
    }
  }

  async function pause(ms: number, name: string, signal: AbortSignal): Promise<void> {
    if (ms > 0) await clock.sleep(ms, signal).catch(() => undefined);
    if (!signal.aborted) return;
    throw new RpcError(`${name}: cancelled`, { failure: 'canceled', maybeDone: true, cause: signal.reason });
  }

  function recover<A, R>(
    mutation: Mutation<A, R>,
    failed: OnError<R>,
    ...[cause, since]: Parameters<Recover<R>>
  ): R | Promise<R> {
    const resolveIfLost = (why: unknown): R | Promise<R> =>
      outcomeCheckOf(why) === undefined ? failed(why) : resolveOutcome(mutation, why as RpcError).catch(failed);
    if (isNfsError(cause, 'JUKEBOX')) return retryJukebox(mutation, since, cause).catch(resolveIfLost);
    // Treat a missing procedure like NFS3ERR_NOTSUPP.
    if (cause instanceof RpcError && cause.failure === 'no-procedure')
      throw new NfsError(mutation.procedure.name, nfsStatus.NOTSUPP, false);
    return resolveIfLost(cause);
  }

  // Without `await` or `catch`: a call takes a few microseconds, and each promise costs a part of that.
  const mutate: RetryingCalls['mutate'] = (mutation, failed = rethrow) =>
    rpc.call(mutation.procedure, mutation.args, mutation.options, (cause, since) =>
      recover(mutation, failed, cause, since),
    );
  const call: RetryingCalls['call'] = (procedure, args, options, failed = rethrow) =>
    rpc.call(procedure, args, options, (cause, since) => recover({ procedure, args, options }, failed, cause, since));

  return { call, mutate };
}

const asMaybeDone = (cause: unknown): unknown =>
  cause instanceof RpcError && !cause.maybeDone
    ? new RpcError(cause.message, { failure: cause.failure, maybeDone: true, cause })
    : cause;

/** The server was unreachable or answered JUKEBOX, so the outcome is still unknown. */
const isUnanswered = (cause: unknown): boolean =>
  isNfsError(cause, 'JUKEBOX') || (cause instanceof RpcError && ['unreachable', 'lost'].includes(cause.failure));

const outcomeCheckOf = (cause: unknown): RpcError['outcomeCheck'] =>
  cause instanceof RpcError ? cause.outcomeCheck : undefined;

/** Marks an error as the reply to a call that was sent more than once. */
const markResent = (cause: unknown): unknown =>
  cause instanceof NfsError ? new NfsError(cause.procedure, cause.status, true) : cause;

function rethrow(cause: unknown): never {
  throw cause;
}
