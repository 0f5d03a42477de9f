import { setImmediate } from 'node:timers/promises';
import type { Clock } from '#base/clock.ts';
import type { Connect } from '#stores/nfs/connect.ts';
import { type NfsClient, RpcError } from '#wire/nfs3/index.ts';

/** Called instead of each NFS call. It may make the call, and returns the result. */
export type CallInterceptor = (call: {
  readonly procedure: string;
  readonly args: readonly unknown[];
  make(): Promise<unknown>;
}) => Promise<unknown>;

export function interceptCalls(connect: Connect, hook: CallInterceptor): Connect {
  return async (options, onStep, signal) => {
    const session = await connect(options, onStep, signal);
    const nfs = new Proxy(session.nfs, {
      get: (client, name) => {
        const method = Reflect.get(client, name) as (...args: readonly unknown[]) => Promise<unknown>;
        return (...args: readonly unknown[]) => hook({ procedure: String(name), args, make: () => method(...args) });
      },
    });
    return {
      nfs: nfs satisfies NfsClient,
      addresses: session.addresses,
      port: session.port,
      mount: (until) => session.mount(until),
      findHangUp: (until) => session.findHangUp(until),
      get calls() {
        return session.calls;
      },
      close: () => session.close(),
    };
  };
}

/**
 * A process that a test can kill at one of its NFS calls, before the server receives the call or after the server has
 * completed it.
 */
export interface CrashableProcess {
  readonly connect: Connect;
  dieAt(call: number, when: 'before' | 'after'): void;
  /**
   * The process dies after the first call after which the condition is true. Calls from timers don't matter, unlike in
   * `dieAt`.
   */
  dieOnce(condition: () => boolean): void;
  readonly isDead: boolean;
  /** The number of calls since `dieAt`, or since the start. */
  readonly calls: number;
}

export function crashableProcess(connect: Connect): CrashableProcess {
  let calls = 0;
  let death: { readonly at: number; readonly when: 'before' | 'after' } | undefined;
  let shouldDie = (): boolean => false;
  let isDead = false;
  const killedError = (): RpcError => new RpcError('the process was killed', { failure: 'closed', maybeDone: true });
  return {
    connect: interceptCalls(connect, async ({ make }) => {
      if (isDead) throw killedError();
      const isLast = ++calls === death?.at;
      if (isLast && death?.when === 'before') {
        isDead = true;
        throw killedError();
      }
      // Set before the call, so that later calls in the same tick are not sent.
      if (isLast) isDead = true;
      const answer = await make();
      if (shouldDie()) isDead = true;
      if (isLast || isDead) throw killedError();
      return answer;
    }),
    dieAt: (at, when) => {
      death = { at, when };
      calls = 0;
    },
    dieOnce: (condition) => {
      shouldDie = condition;
    },
    get isDead() {
      return isDead;
    },
    get calls() {
      return calls;
    },
  };
}

const timeFactor = 5;

/**
 * A clock for a host that waits for another host. A sleep returns almost at once, and advances the clock by more than
 * its duration. Only sleeps advance the clock, so on a busy machine no lock expires and no deadline passes.
 */
export function shortWaitClock(
  clock: Clock,
  onSleep: () => void = () => undefined,
): Clock & { /** Advances the clock without a sleep. */ pass(ms: number): void } {
  let now = clock.elapsed();
  return {
    ...clock,
    elapsed: () => now,
    sleep: async (ms, signal) => {
      signal.throwIfAborted();
      onSleep();
      now += ms * timeFactor;
      await setImmediate();
    },
    pass: (ms) => {
      now += ms;
    },
  };
}
