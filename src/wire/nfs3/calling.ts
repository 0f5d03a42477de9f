import type { Clock } from '#base/clock.ts';
import type { CallOptions, Recover, RpcClient } from '../rpc/client.ts';
import { RpcError } from '../rpc/errors.ts';
import type { Procedure } from '../rpc/procedure.ts';
import { isNfsError, NfsError, nfsStatus } from './status.ts';

type Failed<R> = (cause: unknown) => R | Promise<R>;

/** A call that changes something. */
export interface Mutation<A, R> {
  readonly procedure: Procedure<A, R>;
  readonly args: A;
  readonly options: CallOptions | undefined;
  /**
   * Asked after the connection was lost, when the server would not recognise the call: gives the result if the call was done.
   * Undefined: it was not done, or doing it again is the same. Throws `unknown` if that cannot be told.
   */
  readonly isDone?: ((options: CallOptions, unknown: RpcError) => Promise<R | undefined>) | undefined;
}

/** Makes calls as the specification says what their answers mean. `failed` is asked when one fails: it gives a result, or throws. */
export interface Calling {
  call<A, R>(procedure: Procedure<A, R>, args: A, options: CallOptions | undefined, failed?: Failed<R>): Promise<R>;
  mutate<A, R>(mutation: Mutation<A, R>, failed?: Failed<R>): Promise<R>;
}

/** A server that says "later" (a tape, a quota being counted) is asked again for as long as the deadline allows. */
const jukeboxMs = [100, 200, 400, 800, 1600, 3200, 5000] as const;

const never = new AbortController().signal;

export function createCalling(rpc: Pick<RpcClient, 'call'>, clock: Clock): Calling {
  async function later<A, R>(
    { procedure, args, options }: Mutation<A, R>,
    since: number,
    refusal: NfsError,
  ): Promise<R> {
    const { signal = never, deadlineMs } = options ?? {};
    for (const pause of jukeboxMs) {
      const left = deadlineMs && deadlineMs - pause - (clock.elapsed() - since);
      if (left !== undefined && left <= 0) break;
      await clock.sleep(pause, signal);
      try {
        return await rpc.call(procedure, args, { ...options, deadlineMs: left });
      } catch (cause) {
        if (isNfsError(cause, 'JUKEBOX')) continue;
        throw refusal.resent ? asResent(cause) : cause;
      }
    }
    throw refusal;
  }

  /** Waits until the first copy is not expected to run any more, asks what became of it, and makes the call again if need be. */
  async function decided<A, R>(mutation: Mutation<A, R>, first: RpcError): Promise<R> {
    const { procedure, args, options, isDone } = mutation;
    let cause: unknown = first;
    for (let { decide } = first; decide !== undefined; decide = decideOf(cause)) {
      const wait = Math.max(0, decide.after - clock.elapsed());
      const left = decide.before - clock.elapsed() - wait;
      if (left <= 0) break;
      await pause(wait, procedure.name, options?.signal ?? never);
      const inTime = { ...options, deadlineMs: left };
      const done = await isDone?.(inTime, cause as RpcError);
      if (done !== undefined) return done;
      try {
        return await call(procedure, args, inTime);
      } catch (next) {
        cause = asResent(next);
      }
    }
    throw cause;
  }

  async function pause(ms: number, name: string, signal: AbortSignal): Promise<void> {
    if (ms > 0) await clock.sleep(ms, signal).catch(() => undefined);
    if (!signal.aborted) return;
    throw new RpcError(`${name}: cancelled`, { failure: 'canceled', maybeDone: true, cause: signal.reason });
  }

  function recovered<A, R>(
    mutation: Mutation<A, R>,
    failed: Failed<R>,
    ...[cause, since]: Parameters<Recover<R>>
  ): R | Promise<R> {
    const unlessLost = (why: unknown): R | Promise<R> =>
      decideOf(why) === undefined ? failed(why) : decided(mutation, why as RpcError).catch(failed);
    if (isNfsError(cause, 'JUKEBOX')) return later(mutation, since, cause).catch(unlessLost);
    // A server without the procedure at all means the same as one that says it does not support it.
    if (cause instanceof RpcError && cause.failure === 'no-procedure')
      throw new NfsError(mutation.procedure.name, nfsStatus.NOTSUPP, false);
    return unlessLost(cause);
  }

  // Without `await` or `catch` on the way: a call costs a few microseconds, and each promise is a part of that.
  const mutate: Calling['mutate'] = (mutation, failed = thrown) =>
    rpc.call(mutation.procedure, mutation.args, mutation.options, (cause, since) =>
      recovered(mutation, failed, cause, since),
    );
  const call: Calling['call'] = (procedure, args, options, failed = thrown) =>
    rpc.call(procedure, args, options, (cause, since) => recovered({ procedure, args, options }, failed, cause, since));

  return { call, mutate };
}

const decideOf = (cause: unknown): RpcError['decide'] => (cause instanceof RpcError ? cause.decide : undefined);

/** What was sent twice before the server said "later", or over two connections, was sent twice. */
const asResent = (cause: unknown): unknown =>
  cause instanceof NfsError ? new NfsError(cause.procedure, cause.status, true) : cause;

function thrown(cause: unknown): never {
  throw cause;
}
