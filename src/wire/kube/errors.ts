import type { HttpFailure } from '#base/http.ts';
import { parseJson } from '#base/json.ts';

/** `refused`: the API server said no. `misconfigured`: it cannot even be asked. `garbled`: also an answer that is not what the API says. */
export type KubeFailure = HttpFailure | 'refused' | 'misconfigured';

export interface KubeErrorAbout {
  readonly failure: KubeFailure;
  readonly status?: number;
  readonly reason?: string;
  readonly serverMessage?: string;
  readonly retryAfterMs?: number;
  readonly causes?: readonly string[];
  readonly cause?: unknown;
}

/** Every failure of a call to Kubernetes. It never holds a credential, nor what was in the body of a call. */
export class KubeError extends Error {
  override readonly name = 'KubeError';
  readonly failure: KubeFailure;
  /** Of the answer; zero: there was none. */
  readonly status: number;
  /** Of the Status object that the API server answers with: `NotFound`, `AlreadyExists`, `Conflict`, `Expired` … or empty. */
  readonly reason: string;
  /** What the API server said, where it said something. */
  readonly serverMessage: string;
  /** How long it wants to be left alone; zero: it did not say. */
  readonly retryAfterMs: number;
  /** Finer than the reason, where the API server is: `ResourceVersionTooLarge`, `NamespaceTerminating` … */
  readonly causes: readonly string[];
  constructor(message: string, about: KubeErrorAbout) {
    super(message, { cause: about.cause });
    this.failure = about.failure;
    this.status = about.status ?? 0;
    this.reason = about.reason ?? '';
    this.serverMessage = about.serverMessage ?? '';
    this.retryAfterMs = about.retryAfterMs ?? 0;
    this.causes = about.causes ?? [];
  }
}

export const garbled = (call: string, why: string, cause?: unknown): KubeError =>
  new KubeError(`${call}: ${why}`, { failure: 'garbled', cause });

export const parsed = (text: string, call: string): unknown => parseJson(text, (why) => garbled(call, why));

export const misconfigured = (why: string, cause?: unknown): KubeError =>
  new KubeError(why, { failure: 'misconfigured', cause });

/** The reason that the API server gave, if it was the API server that said no. */
export const reasonOf = (thrown: unknown): string => (thrown instanceof KubeError ? thrown.reason : '');

/** What was listed is too old, or is not there yet, to be watched from: only a new list helps. */
export const mustRelist = (thrown: unknown): boolean =>
  thrown instanceof KubeError &&
  (thrown.status === 410 ||
    thrown.reason === 'Expired' ||
    thrown.reason === 'Gone' ||
    // The API server's store is older than what it told us before: it was restored from a backup.
    thrown.causes.includes('ResourceVersionTooLarge'));

/** Whether the same call may succeed later without anybody changing anything. */
export function isTransient(error: KubeError): boolean {
  const { failure, status } = error;
  return failure === 'refused' ? status === 429 || status >= 500 : failure !== 'misconfigured' && failure !== 'garbled';
}
