import type { Clock } from '#base/clock.ts';
import type { Connection } from './connection.ts';
import type { LivenessCheck } from './liveness-check.ts';
import type { PendingCalls } from './pending-calls.ts';

export interface SilenceWatchOptions {
  readonly clock: Clock;
  readonly closing: AbortSignal;
  readonly pending: PendingCalls;
  readonly livenessCheck: LivenessCheck;
  readonly connection: () => Connection | undefined;
}

/** Measures how long the server has sent nothing, and resets a connection that has died. */
export interface SilenceWatch {
  /** There is a new connection. */
  connected(): void;
  /** The server has answered a call. */
  answered(): void;
  /** How long nothing was received while calls were pending, counted from the first call of this function. */
  silentMs(now: number): number;
  /** Checks the connection if nothing was received for this long, and resets it if it is dead. */
  checkIfSilent(silentMs: number): void;
}

/** If a server answers NULL but none of the calls, each further check waits twice as long, up to this factor. */
const maxSilenceFactor = 16;
/** The longest pause after a check that found the connection alive. */
const maxRecheckPauseMs = 5_000;

export function createSilenceWatch(options: SilenceWatchOptions): SilenceWatch {
  const { clock, closing, pending, livenessCheck, connection } = options;
  let silentSince: number | undefined;
  /** The number of bytes received at the last check. */
  let receivedAtLastCheck = 0;
  let isChecking = false;
  let silenceFactor = 1;

  function silentMsAt(now: number): number {
    const current = connection();
    if (current === undefined) return 0;
    if (current.receivedBytes !== receivedAtLastCheck) silentSince = undefined;
    receivedAtLastCheck = current.receivedBytes;
    if (pending.size > 0) silentSince ??= now;
    return now - (silentSince ?? now);
  }

  async function checkConnection(silentMs: number): Promise<void> {
    const [current, [any]] = [connection(), pending.values()];
    if (isChecking || current === undefined || any === undefined) return;
    isChecking = true;
    if (await livenessCheck.isDead(current, any.procedure, silentMs)) {
      silenceFactor = Math.min(silenceFactor * 2, maxSilenceFactor);
      if (connection() === current) current.reset();
    } else if (silentMsAt(clock.elapsed()) > silentMs)
      await clock.sleep(Math.min(silentMs, maxRecheckPauseMs), closing).catch(() => undefined);
    isChecking = false;
  }

  return {
    connected: () => {
      silentSince = undefined;
      receivedAtLastCheck = 0;
    },
    answered: () => {
      silenceFactor = 1;
    },
    silentMs: silentMsAt,
    checkIfSilent: (silentMs) => {
      if (silentMsAt(clock.elapsed()) > silentMs * silenceFactor) void checkConnection(silentMs);
    },
  };
}
