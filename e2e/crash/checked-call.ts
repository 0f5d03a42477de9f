import { setTimeout as delay } from 'node:timers/promises';
import type { Told, Victim } from './killed-server.ts';

export interface Asked {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
  readonly repeated: boolean;
}

/** Makes calls, each with a key of its own; throws for an answer that is not one of the `allowed`. */
export type Ask = (method: string, path: string, body: unknown, allowed: (answer: Told) => boolean) => Promise<Asked>;

/** The answer, or "not found" to a repeat: the call that was interrupted may have got to its end. */
export const orGone =
  (status: number) =>
  (answer: Told): boolean =>
    answer.status === status || (answer.repeated && answer.status === 404);

export const is =
  (...statuses: readonly number[]) =>
  (answer: Told): boolean =>
    statuses.includes(answer.status);

/** A store comes or goes at this moment, so nobody can say that there is no such volume. Nothing was done. */
const undecided = ({ status, body }: Told): boolean =>
  status === 503 && ['volume-lookup-incomplete', 'trash-lookup-incomplete'].includes(String(body['reason']));

export function createAsk(name: string, victim: Victim, random: () => number): Ask {
  return async (method, path, body, allowed) => {
    const key = `${name}-${Math.floor(random() * 1e15)}`;
    let answer = await victim.call(method, path, body, key);
    for (let attempt = 0; attempt < 100 && undecided(answer); attempt++) {
      await delay(50);
      const next = await victim.call(method, path, body, key);
      answer = { ...next, repeated: answer.repeated || next.repeated };
    }
    if (allowed(answer)) return { ...answer, body: answer.body ?? {} };
    const how = `${answer.status}${answer.repeated ? ' when repeated' : ''}`;
    throw new Error(`${method} ${path} ${JSON.stringify(body)} gave ${how}: ${JSON.stringify(answer.body)}`);
  };
}
