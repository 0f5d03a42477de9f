import { DeadlineExceeded } from '#base/clock.ts';
import { StillRunning } from '#base/wait.ts';
import type { errorReasons, Reason } from './error-reasons.ts';

/**
 * The meaning of each code in every protocol. Only this table decides about retries, HTTP and gRPC status, and exit status; a front end for
 * another protocol adds a column here instead of its own switch. `short` is for callers who may not read the error's message.
 */
export const errorCodes = {
  invalid: {
    http: 400,
    grpc: 3,
    exit: 2,
    retry: false,
    title: 'The request is not valid',
    short: 'the store cannot use its configured location',
  },
  'out-of-range': {
    http: 400,
    grpc: 11,
    exit: 2,
    retry: false,
    title: 'A value is out of range',
    short: 'the store cannot do this',
  },
  unauthenticated: {
    http: 401,
    grpc: 16,
    exit: 3,
    retry: false,
    title: 'No valid token was given',
    short: 'this needs a token',
  },
  denied: {
    http: 403,
    grpc: 7,
    exit: 3,
    retry: false,
    title: 'Not permitted',
    short: 'the store denies Stowage access: a permission problem',
  },
  'not-found': {
    http: 404,
    grpc: 5,
    exit: 4,
    retry: false,
    title: 'Not found',
    short: 'something that this needs is missing',
  },
  exists: {
    http: 409,
    grpc: 6,
    exit: 5,
    retry: false,
    title: 'It exists already',
    short: 'something other than a volume is already there',
  },
  conflict: {
    http: 409,
    grpc: 9,
    exit: 5,
    retry: false,
    title: 'It is in a state that contradicts the request',
    short: 'the store cannot use its configured location',
  },
  'in-use': { http: 409, grpc: 9, exit: 6, retry: false, title: 'It is in use', short: 'it is in use' },
  stale: {
    http: 412,
    grpc: 10,
    exit: 5,
    retry: false,
    title: 'It changed since you read it',
    short: 'it changed in the meantime',
  },
  unsupported: {
    http: 422,
    grpc: 9,
    exit: 7,
    retry: false,
    title: 'Not supported here',
    short: 'the store cannot do this',
  },
  busy: {
    http: 409,
    grpc: 10,
    exit: 8,
    retry: true,
    title: 'Busy with another operation',
    short: 'another operation is in progress',
  },
  canceled: { http: 499, grpc: 1, exit: 130, retry: true, title: 'Cancelled', short: 'it was cancelled' },
  exhausted: {
    http: 507,
    grpc: 8,
    exit: 9,
    retry: false,
    title: 'No room left',
    short: 'no room is left in the store',
  },
  unavailable: {
    http: 503,
    grpc: 14,
    exit: 10,
    retry: true,
    title: 'Not available at the moment',
    short: 'the store is unreachable (network, server or disk failure)',
  },
  deadline: {
    http: 504,
    grpc: 4,
    exit: 10,
    retry: true,
    title: 'No answer in time',
    short: 'the store did not answer in time (network or server failure)',
  },
  internal: {
    http: 500,
    grpc: 13,
    exit: 1,
    retry: false,
    title: 'A fault in Stowage',
    short: 'Stowage failed to do this',
  },
} as const satisfies Record<
  string,
  { http: number; grpc: number; exit: number; retry: boolean; title: string; short: string }
>;

export type ErrorCode = keyof typeof errorCodes;

/** A newer version may send codes that this one does not know. */
export const isErrorCode = (code: string): code is ErrorCode => Object.hasOwn(errorCodes, code);

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
  constructor(message: string, about: (CodeAndReason | { code: ErrorCode; reason: ForeignReason }) & Details) {
    super(message, { cause: about.cause });
    this.code = about.code;
    this.reason = about.reason;
    this.action = about.action;
    this.toUsers = about.toUsers;
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
