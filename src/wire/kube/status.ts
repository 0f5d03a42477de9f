import { asJsonObject, jsonIn } from '#base/json.ts';
import { KubeError } from './errors.ts';

const maxMessageLength = 1_000;

/**
 * Turns an error response into a KubeError. The API server sends a Status object; a proxy in front of it may send anything. The
 * message is reduced to one short line, and the client's own credential is removed from it, in case the response contains it.
 */
export function statusError(call: string, answer: ErrorResponse, secret = ''): KubeError {
  const statusObject = asJsonObject(jsonIn(answer.body));
  const details = asJsonObject(statusObject?.['details']);
  const serverMessage = sanitize(
    textOf(statusObject?.['message']) || (statusObject === undefined ? answer.body : ''),
    secret,
  );
  const reason = textOf(statusObject?.['reason']);
  const status = answer.status === 0 ? countOf(statusObject?.['code']) : answer.status;
  return new KubeError(`${call}: ${serverMessage || reason || `status ${status}`}`, {
    failure: 'refused',
    status,
    reason,
    serverMessage,
    retryAfterMs: 1_000 * (countOf(details?.['retryAfterSeconds']) || countOf(Number(answer.retryAfter ?? ''))),
    causes: listOf(details?.['causes'])
      .map((one) => textOf(asJsonObject(one)?.['reason']))
      .filter((one) => one !== ''),
  });
}

export interface ErrorResponse {
  /** 0: the status is only in the body. */
  readonly status: number;
  readonly body: string;
  /** The Retry-After header, in seconds. */
  readonly retryAfter?: string | undefined;
}

function sanitize(text: string, secret: string): string {
  const clean = secret === '' ? text : text.replaceAll(secret, '***');
  return clean.trim().replaceAll(/\s+/g, ' ').slice(0, maxMessageLength);
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');
const countOf = (value: unknown): number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value > 0 ? value : 0;
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
