import type { HttpFailure } from '#base/http.ts';
import { parseJson } from '#base/json.ts';

/**
 * `refused`: the API server returned an error. `misconfigured`: the client cannot send the request. `garbled`: the response is
 * malformed or violates the API.
 */
export type KubeFailure = HttpFailure | 'refused' | 'misconfigured';

export interface KubeErrorFields {
  readonly failure: KubeFailure;
  readonly status?: number;
  readonly reason?: string;
  readonly serverMessage?: string;
  readonly retryAfterMs?: number;
  readonly causes?: readonly string[];
  readonly cause?: unknown;
}

/** Every failure of a call to Kubernetes. It never contains a credential or the body of a request. */
export class KubeError extends Error {
  override readonly name = 'KubeError';
  readonly failure: KubeFailure;
  /** The HTTP status; 0 if there was no response. */
  readonly status: number;
  /** The reason of the API server's Status object, for example `NotFound`, `AlreadyExists`, `Conflict` or `Expired`; or empty. */
  readonly reason: string;
  /** The API server's error message, if any. */
  readonly serverMessage: string;
  /** How long the API server asks the client to wait; 0 if it did not ask. */
  readonly retryAfterMs: number;
  /** Details of the reason, for example `ResourceVersionTooLarge` or `NamespaceTerminating`. */
  readonly causes: readonly string[];
  constructor(message: string, fields: KubeErrorFields) {
    super(message, { cause: fields.cause });
    this.failure = fields.failure;
    this.status = fields.status ?? 0;
    this.reason = fields.reason ?? '';
    this.serverMessage = fields.serverMessage ?? '';
    this.retryAfterMs = fields.retryAfterMs ?? 0;
    this.causes = fields.causes ?? [];
  }
}

export const garbledError = (call: string, why: string, cause?: unknown): KubeError =>
  new KubeError(`${call}: ${why}`, { failure: 'garbled', cause });

export const parseBody = (text: string, call: string): unknown => parseJson(text, (why) => garbledError(call, why));

export const configError = (why: string, cause?: unknown): KubeError =>
  new KubeError(why, { failure: 'misconfigured', cause });

/** The API server's reason, if the error came from the API server. */
export const reasonOf = (thrown: unknown): string => (thrown instanceof KubeError ? thrown.reason : '');

/** Whether a new list is needed, because the resourceVersion is too old for a watch, or newer than the API server's data. */
export const mustRelist = (thrown: unknown): boolean =>
  thrown instanceof KubeError &&
  (thrown.status === 410 ||
    thrown.reason === 'Expired' ||
    thrown.reason === 'Gone' ||
    // The API server's data are older than the data that it sent before: etcd was restored from a backup.
    thrown.causes.includes('ResourceVersionTooLarge'));

/** Whether the same call may succeed later without any change. */
export function isTransient(error: KubeError): boolean {
  const { failure, status } = error;
  return failure === 'refused' ? status === 429 || status >= 500 : failure !== 'misconfigured' && failure !== 'garbled';
}
