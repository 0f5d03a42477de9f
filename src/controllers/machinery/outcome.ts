import { type ErrorCode, errorCodes } from '#core/error-codes.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { isTransient, KubeError } from '#wire/kube/errors.ts';

/** Nothing to do until something changes. */
export interface ReconcileDone {
  readonly kind: 'done';
}

/** Reconcile again later, without an error. */
export interface RequeueAfter {
  readonly kind: 'again';
  readonly afterMs: number;
}

export const done: ReconcileDone = { kind: 'done' };
export const requeueAfter = (afterMs: number): RequeueAfter => ({ kind: 'again', afterMs });

/** How the controller continues with a key after an error. */
export type Failure =
  /** The reconcile was aborted. */
  | { readonly kind: 'stopped' }
  /** The error may be transient. `leastMs` is the delay that the server requested, or zero. */
  | { readonly kind: 'retry'; readonly leastMs: number }
  /** A retry is useless until an object or the store changes. */
  | { readonly kind: 'terminal' };

export function failureOf(thrown: unknown, signal: AbortSignal): Failure {
  if (signal.aborted) return { kind: 'stopped' };
  if (thrown instanceof KubeError) return kubeFailure(thrown);
  const error = stowageError(thrown);
  // A bug may depend on the timing, so retry internal errors too.
  if (errorCodes[error.code].retry || error.code === 'internal') return { kind: 'retry', leastMs: 0 };
  return { kind: 'terminal' };
}

function kubeFailure(error: KubeError): Failure {
  const { retryAfterMs, status } = error;
  if (isTransient(error)) return { kind: 'retry', leastMs: retryAfterMs };
  // The cache may be behind: the object was changed, created or deleted since. Rights may be granted soon.
  if (status === 401 || status === 403 || status === 404 || status === 409) return { kind: 'retry', leastMs: 0 };
  return { kind: 'terminal' };
}

/** Translates errors of Kubernetes to error codes. */
export function codeOf(thrown: unknown): ErrorCode {
  if (thrown instanceof StowageError) return thrown.code;
  if (!(thrown instanceof KubeError)) return stowageError(thrown).code;
  if (thrown.failure !== 'refused') return failures[thrown.failure];
  if (thrown.status >= 500 || thrown.status === 429) return 'unavailable';
  return statuses[thrown.status] ?? 'invalid';
}

const failures = {
  unreachable: 'unavailable',
  lost: 'unavailable',
  deadline: 'deadline',
  canceled: 'canceled',
  garbled: 'internal',
  misconfigured: 'invalid',
} as const satisfies Record<Exclude<KubeError['failure'], 'refused'>, ErrorCode>;

const statuses: Readonly<Record<number, ErrorCode>> = {
  401: 'unauthenticated',
  403: 'denied',
  404: 'not-found',
  409: 'conflict',
};
