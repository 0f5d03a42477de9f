import { isErrno } from '#base/errno.ts';
/**
 * - `unreachable`: no connection could be made, or none in time; another attempt may succeed (cause: the system's error)
 * - `lost`: the connection broke and could not be made again in time; whether the call was done is not known
 * - `deadline`: no reply in time; whether the call was done is not known
 * - `canceled`: the caller gave up
 * - `denied`: the server does not accept who we say we are
 * - `unsupported`: no such program or version there
 * - `no-procedure`: the program is there, the procedure is not
 * - `garbled`: what came back does not follow the protocol
 * - `tls`: encryption was asked for, and one side said no: it is not offered, or a certificate is not what it should be; or the
 *   server has ended many connections in a row right after it was agreed on, which is how some refuse a client's certificate
 * - `closed`: we closed the connection ourselves
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

/** When to ask the server whether a call was done, by the clock's elapsed time. */
export interface OutcomeCheck {
  /** From then on the first copy is not expected to run any more. 0: it cannot, since the server has restarted. */
  readonly after: number;
  /** The call's deadline. */
  readonly before: number;
}

export class RpcError extends Error {
  override readonly name = 'RpcError';
  readonly failure: RpcFailure;
  /** The call was on its way: it may have been done, or may still be. */
  readonly maybeDone: boolean;
  /** Present: the server answers again, but would not recognise the call if it were resent. */
  readonly outcomeCheck: OutcomeCheck | undefined;
  constructor(
    message: string,
    about: {
      readonly failure: RpcFailure;
      readonly maybeDone?: boolean;
      readonly outcomeCheck?: OutcomeCheck;
      readonly cause?: unknown;
    },
  ) {
    super(message, { cause: about.cause });
    this.failure = about.failure;
    this.maybeDone = about.maybeDone ?? false;
    this.outcomeCheck = about.outcomeCheck;
  }
}

/** What the system said when a connection could not be made. */
export function isSystemError(thrown: unknown, ...codes: readonly string[]): boolean {
  for (let cause = thrown; cause instanceof Error; cause = cause.cause) {
    if (isErrno(cause, ...codes)) return true;
  }
  return false;
}

/** The local port is in use, or the kernel has not let go of the connection before. */
export const isPortTaken = (thrown: unknown): boolean => isSystemError(thrown, 'EADDRINUSE', 'EADDRNOTAVAIL');
