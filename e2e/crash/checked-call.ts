import { setTimeout as delay } from 'node:timers/promises';
import type { KilledServer, RetriedAnswer } from './killed-server.ts';

export interface CheckedAnswer {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
  readonly wasRetried: boolean;
}

/** Makes a call with a new idempotency key. Throws if the answer is not one of `allowed`. */
export type CheckedCall = (
  method: string,
  path: string,
  body: unknown,
  allowed: (answer: RetriedAnswer) => boolean,
) => Promise<CheckedAnswer>;

/** Also allows "not found" for a retry, because the interrupted call may have completed. */
export const orNotFoundOnRetry =
  (status: number) =>
  (answer: RetriedAnswer): boolean =>
    answer.status === status || (answer.wasRetried && answer.status === 404);

export const hasStatus =
  (...statuses: readonly number[]) =>
  (answer: RetriedAnswer): boolean =>
    statuses.includes(answer.status);

/**
 * While a store is being added or removed, the server can't tell whether the volume exists. The call has changed
 * nothing.
 */
const isIncompleteLookup = ({ status, body }: RetriedAnswer): boolean =>
  status === 503 && ['volume-lookup-incomplete', 'trash-lookup-incomplete'].includes(String(body['reason']));

export function createCheckedCall(name: string, stowage: KilledServer, random: () => number): CheckedCall {
  return async (method, path, body, allowed) => {
    const key = `${name}-${Math.floor(random() * 1e15)}`;
    let answer = await stowage.call(method, path, body, key);
    for (let attempt = 0; attempt < 100 && isIncompleteLookup(answer); attempt++) {
      await delay(50);
      const next = await stowage.call(method, path, body, key);
      answer = { ...next, wasRetried: answer.wasRetried || next.wasRetried };
    }
    if (allowed(answer)) return { ...answer, body: answer.body ?? {} };
    const outcome = `${answer.status}${answer.wasRetried ? ' when repeated' : ''}`;
    throw new Error(`${method} ${path} ${JSON.stringify(body)} gave ${outcome}: ${JSON.stringify(answer.body)}`);
  };
}
