import { isErrno } from '#base/errno.ts';
/**
 * - `unreachable`: could not connect, or not in time; another attempt may succeed (cause: the system's error)
 * - `lost`: the connection broke and the client could not reconnect in time; the outcome of the call is unknown
 * - `deadline`: no reply in time; the outcome of the call is unknown
 * - `canceled`: the caller's signal was aborted
 * - `denied`: the server rejected the credential
 * - `unsupported`: the server does not have the program or the version
 * - `no-procedure`: the program does not have the procedure
 * - `garbled`: the reply violates the protocol
 * - `tls`: the server does not offer TLS, or one side rejected the other's certificate; or the server closed many connections in a
 *   row right after the handshake, which is how some servers reject a client's certificate
 * - `closed`: this client was closed
 */
export type RpcFailure =
  | 'unreachable'
  | 'lost'
  | 'deadline'
  | 'canceled'
  | 'denied'
  | 'unsupported'
  | 'no-procedure'
  | 'garbled'
  | 'tls'
  | 'closed';

/** When to ask the server whether it executed the call, in the clock's elapsed time. */
export interface OutcomeCheck {
  /**
   * The time after which the first copy of the call is no longer expected to run. 0: it cannot run, since the server has
   * restarted.
   */
  readonly notBefore: number;
  /** The call's deadline. */
  readonly deadline: number;
}

export class RpcError extends Error {
  override readonly name = 'RpcError';
  readonly failure: RpcFailure;
  /** The call was sent, so the server may have executed it, or may execute it later. */
  readonly maybeDone: boolean;
  /** Present if the server answers again, but would not recognise the call if the client resent it. */
  readonly outcomeCheck: OutcomeCheck | undefined;
  constructor(
    message: string,
    options: {
      readonly failure: RpcFailure;
      readonly maybeDone?: boolean;
      readonly outcomeCheck?: OutcomeCheck;
      readonly cause?: unknown;
    },
  ) {
    super(message, { cause: options.cause });
    this.failure = options.failure;
    this.maybeDone = options.maybeDone ?? false;
    this.outcomeCheck = options.outcomeCheck;
  }
}

/** Whether a system error with one of these codes is in the chain of causes. */
export function isSystemError(thrown: unknown, ...codes: readonly string[]): boolean {
  for (let cause = thrown; cause instanceof Error; cause = cause.cause) {
    if (isErrno(cause, ...codes)) return true;
  }
  return false;
}

/** The local port is in use, or the kernel has not released the previous connection yet. */
export const isPortTaken = (thrown: unknown): boolean => isSystemError(thrown, 'EADDRINUSE', 'EADDRNOTAVAIL');
