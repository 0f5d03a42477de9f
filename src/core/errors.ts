import { DeadlineExceeded } from '#base/clock.ts';
import { StillRunning } from '#base/patience.ts';

/**
 * What a code means to every protocol. This table alone decides retry, HTTP status and exit status; a front end that
 * speaks another protocol adds a column here, not a switch of its own.
 */
export const errorCodes = {
  invalid: { http: 400, exit: 2, retry: false, title: 'The request is not valid' },
  'out-of-range': { http: 400, exit: 2, retry: false, title: 'A value is out of range' },
  unauthenticated: { http: 401, exit: 3, retry: false, title: 'No valid token was given' },
  denied: { http: 403, exit: 3, retry: false, title: 'Not permitted' },
  'not-found': { http: 404, exit: 4, retry: false, title: 'Not found' },
  exists: { http: 409, exit: 5, retry: false, title: 'It exists already' },
  conflict: { http: 409, exit: 5, retry: false, title: 'It is in a state that contradicts the request' },
  'in-use': { http: 409, exit: 6, retry: false, title: 'It is in use' },
  stale: { http: 412, exit: 5, retry: false, title: 'It changed since you read it' },
  unsupported: { http: 422, exit: 7, retry: false, title: 'Not supported here' },
  busy: { http: 409, exit: 8, retry: true, title: 'Busy with another operation' },
  canceled: { http: 499, exit: 130, retry: true, title: 'Cancelled' },
  exhausted: { http: 507, exit: 9, retry: false, title: 'No room left' },
  unavailable: { http: 503, exit: 10, retry: true, title: 'Not reachable at the moment' },
  deadline: { http: 504, exit: 10, retry: true, title: 'No answer in time' },
  internal: { http: 500, exit: 1, retry: false, title: 'A fault in Stowage' },
} as const satisfies Record<string, { http: number; exit: number; retry: boolean; title: string }>;

export type ErrorCode = keyof typeof errorCodes;

/** What failed (message), why (cause), what to do now (action). `reason` is fine-grained and stable: one docs entry each. */
export class StowageError extends Error {
  override readonly name = 'StowageError';
  readonly code: ErrorCode;
  readonly reason: string;
  readonly action: string;
  constructor(
    message: string,
    about: { readonly code: ErrorCode; readonly reason: string; readonly action: string; readonly cause?: unknown },
  ) {
    super(message, { cause: about.cause });
    this.code = about.code;
    this.reason = about.reason;
    this.action = about.action;
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
