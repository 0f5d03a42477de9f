import { KubeError } from './errors.ts';

const shown = 1_000;

/**
 * What an answer that says no means: the API server sends a Status object, what stands before it whatever it likes. Text that
 * is passed on is one line, is short, and holds no credential of ours, should somebody repeat it to us.
 */
export function statusError(call: string, answer: ErrorResponse, secret = ''): KubeError {
  const found = objectIn(answer.body);
  const details = asObject(found?.['details']);
  const serverMessage = sanitize(textOf(found?.['message']) || (found === undefined ? answer.body : ''), secret);
  const reason = textOf(found?.['reason']);
  const status = answer.status === 0 ? countOf(found?.['code']) : answer.status;
  return new KubeError(`${call}: ${serverMessage || reason || `status ${status}`}`, {
    failure: 'refused',
    status,
    reason,
    serverMessage,
    retryAfterMs: 1_000 * (countOf(details?.['retryAfterSeconds']) || countOf(Number(answer.retryAfter ?? ''))),
    causes: listOf(details?.['causes'])
      .map((one) => textOf(asObject(one)?.['reason']))
      .filter((one) => one !== ''),
  });
}

export interface ErrorResponse {
  /** Zero: it is in the body alone. */
  readonly status: number;
  readonly body: string;
  /** The header, in seconds. */
  readonly retryAfter?: string | undefined;
}

function sanitize(text: string, secret: string): string {
  const clean = secret === '' ? text : text.replaceAll(secret, '***');
  return clean.trim().replaceAll(/\s+/g, ' ').slice(0, shown);
}

function objectIn(body: string): Readonly<Record<string, unknown>> | undefined {
  try {
    return asObject(JSON.parse(body));
  } catch {
    return undefined;
  }
}

const asObject = (value: unknown): Readonly<Record<string, unknown>> | undefined =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : undefined;
const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');
const countOf = (value: unknown): number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value > 0 ? value : 0;
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
