import { type ErrorCode, errorCodes, StowageError, stowageError } from '#core/errors.ts';
import { KubeError, mayPass } from '#wire/kube/errors.ts';

/** As it should be, as far as is known now: until something changes. */
export interface Done {
  readonly kind: 'done';
}

/** Nothing is wrong, and it is to be looked at later. */
export interface Again {
  readonly kind: 'again';
  readonly afterMs: number;
}

export const done: Done = { kind: 'done' };
export const again = (afterMs: number): Again => ({ kind: 'again', afterMs });

/** What an error means for the key that it happened to. */
export type Failure =
  /** It was told to stop: not its fault. */
  | { readonly kind: 'stopped' }
  /** It may pass by itself. Not before that time, where somebody said one. */
  | { readonly kind: 'retry'; readonly leastMs: number }
  /** Somebody has to change something first. */
  | { readonly kind: 'terminal' };

export function failureOf(thrown: unknown, signal: AbortSignal): Failure {
  if (signal.aborted) return { kind: 'stopped' };
  if (thrown instanceof KubeError) return kubeFailure(thrown);
  const error = stowageError(thrown);
  // A fault of ours may depend on a moment that does not come again.
  if (errorCodes[error.code].retry || error.code === 'internal') return { kind: 'retry', leastMs: 0 };
  return { kind: 'terminal' };
}

function kubeFailure(error: KubeError): Failure {
  const { retryAfterMs, status } = error;
  if (mayPass(error)) return { kind: 'retry', leastMs: retryAfterMs };
  // What is in a cache is a moment old: it was changed, made or deleted since. Rights may be on their way.
  if (status === 401 || status === 403 || status === 404 || status === 409) return { kind: 'retry', leastMs: 0 };
  return { kind: 'terminal' };
}

/** What an error of Kubernetes means in the words of everybody else. */
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
