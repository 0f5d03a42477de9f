import { DeadlineExceeded } from '#base/clock.ts';
import { StillRunning } from '#base/wait.ts';

/**
 * What a code means to every protocol. This table alone decides retry, the status of HTTP and gRPC, and the exit status; a front end that
 * speaks another protocol adds a column here, not a switch of its own.
 */
export const errorCodes = {
  invalid: { http: 400, grpc: 3, exit: 2, retry: false, title: 'The request is not valid' },
  'out-of-range': { http: 400, grpc: 11, exit: 2, retry: false, title: 'A value is out of range' },
  unauthenticated: { http: 401, grpc: 16, exit: 3, retry: false, title: 'No valid token was given' },
  denied: { http: 403, grpc: 7, exit: 3, retry: false, title: 'Not permitted' },
  'not-found': { http: 404, grpc: 5, exit: 4, retry: false, title: 'Not found' },
  exists: { http: 409, grpc: 6, exit: 5, retry: false, title: 'It exists already' },
  conflict: { http: 409, grpc: 9, exit: 5, retry: false, title: 'It is in a state that contradicts the request' },
  'in-use': { http: 409, grpc: 9, exit: 6, retry: false, title: 'It is in use' },
  stale: { http: 412, grpc: 10, exit: 5, retry: false, title: 'It changed since you read it' },
  unsupported: { http: 422, grpc: 9, exit: 7, retry: false, title: 'Not supported here' },
  busy: { http: 409, grpc: 10, exit: 8, retry: true, title: 'Busy with another operation' },
  canceled: { http: 499, grpc: 1, exit: 130, retry: true, title: 'Cancelled' },
  exhausted: { http: 507, grpc: 8, exit: 9, retry: false, title: 'No room left' },
  unavailable: { http: 503, grpc: 14, exit: 10, retry: true, title: 'Not available at the moment' },
  deadline: { http: 504, grpc: 4, exit: 10, retry: true, title: 'No answer in time' },
  internal: { http: 500, grpc: 13, exit: 1, retry: false, title: 'A fault in Stowage' },
} as const satisfies Record<string, { http: number; grpc: number; exit: number; retry: boolean; title: string }>;

export type ErrorCode = keyof typeof errorCodes;

/** What a reason can look like. */
export const reasonGrammar = '^[a-z][a-z0-9-]{0,63}$';

interface About {
  readonly code: ErrorCode;
  readonly reason: string;
  readonly action: string;
  /** In place of message, and action, for those who are not administrators; left out: telling.ts decides. */
  readonly toUsers?: { readonly message: string; readonly action?: string };
  readonly cause?: unknown;
}

/** What failed (message), why (cause), what to do now (action). `reason` is fine-grained and stable: one docs entry each. */
export class StowageError extends Error {
  override readonly name = 'StowageError';
  readonly code: ErrorCode;
  readonly reason: string;
  readonly action: string;
  readonly toUsers: About['toUsers'];
  constructor(message: string, about: About) {
    super(message, { cause: about.cause });
    this.code = about.code;
    this.reason = about.reason;
    this.action = about.action;
    this.toUsers = about.toUsers;
  }
}

/** The single funnel: whatever was thrown becomes a StowageError. */
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
    return new StowageError(`${message}; what was begun goes on`, {
      code,
      reason: 'still-running',
      action:
        'See what becomes of it: stowage operations. What holds it up may be a disk or server: stowage store check',
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
