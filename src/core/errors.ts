import { DeadlineExceeded } from '#base/clock.ts';
import { StillRunning } from '#base/wait.ts';
import type { ErrorCode } from './error-codes.ts';
import type { errorReasons, Reason } from './error-reasons.ts';

/** The pattern of reasons. */
export const reasonGrammar = '^[a-z][a-z0-9-]{0,63}$';

type CodeIn<C> = C extends readonly (infer Each)[] ? Each : C;

/** The reasons that an error with this code can have. */
export type ReasonWith<Code extends ErrorCode> = {
  [R in Reason]: Code extends CodeIn<(typeof errorReasons)[R]['code']> ? R : never;
}[Reason];

/** A code and a reason that belong together. */
export type CodeAndReason = {
  [C in ErrorCode]: { readonly code: C; readonly reason: ReasonWith<C> };
}[ErrorCode];

declare const foreign: unique symbol;
/** A reason from another version of Stowage, which error-reasons.ts may lack: see `relayed`. */
type ForeignReason = string & { readonly [foreign]: true };

interface Details {
  readonly action: string;
  /** Replaces message and action for callers who are not administrators. Absent: error-disclosure.ts decides. */
  readonly toUsers?: { readonly message: string; readonly action?: string };
  readonly cause?: unknown;
}

/**
 * What failed (message), why (cause), what to do now (action). `reason` is fine-grained and stable: error-reasons.ts lists all reasons,
 * and the compiler checks that code and reason agree with it.
 */
export class StowageError extends Error {
  override readonly name = 'StowageError';
  readonly code: ErrorCode;
  readonly reason: Reason | ForeignReason;
  readonly action: string;
  readonly toUsers: Details['toUsers'];
  constructor(message: string, details: (CodeAndReason | { code: ErrorCode; reason: ForeignReason }) & Details) {
    super(message, { cause: details.cause });
    this.code = details.code;
    this.reason = details.reason;
    this.action = details.action;
    this.toUsers = details.toUsers;
  }
}

/**
 * Creates an error with the code or reason of another error, possibly from another version of Stowage. The compiler does not check that
 * code and reason match.
 */
export function relayed(
  message: string,
  { reason, ...about }: { readonly code: ErrorCode; readonly reason: string } & Details,
): StowageError {
  return new StowageError(message, { ...about, reason: reason as ForeignReason });
}

/** The only place that converts a thrown value to a StowageError. */
export function stowageError(thrown: unknown): StowageError {
  if (thrown instanceof StowageError) return thrown;
  if (thrown instanceof DeadlineExceeded) {
    return new StowageError(thrown.message, {
      code: 'deadline',
      reason: 'deadline',
      action: 'Try again; if it persists, look at the store with: stowage store check',
      cause: thrown,
    });
  }
  if (thrown instanceof StillRunning) {
    const { code, message } = stowageError(thrown.cause);
    return relayed(`${message}; the operation continues in the background`, {
      code,
      reason: 'still-running',
      action: 'See its progress: stowage operations. It may be waiting for a disk or server: stowage store check',
      cause: thrown,
    });
  }
  if (thrown instanceof Error && thrown.name === 'AbortError') {
    if (thrown.cause instanceof StowageError || thrown.cause instanceof DeadlineExceeded)
      return stowageError(thrown.cause);
    return canceled(thrown);
  }
  const text = thrown instanceof Error ? thrown.message : String(thrown);
  return new StowageError(text, {
    code: 'internal',
    reason: 'internal',
    action: 'This should not happen. Please report it with the lines the server logged at that moment.',
    cause: thrown,
  });
}

export function canceled(cause?: unknown): StowageError {
  return new StowageError('the operation was cancelled', {
    code: 'canceled',
    reason: 'canceled',
    action: 'Repeat the request when you want it done; repeating is safe.',
    cause,
  });
}
