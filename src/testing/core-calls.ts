import { randomUUID } from 'node:crypto';
import { type Log, silentLog } from '#base/log.ts';
import type { Core } from '#core/core.ts';
import type { Call } from '#core/operations.ts';

/** A call with a new request id, for tests that call core without a front end. */
export const aCall = (about: Partial<Call> = {}): Call => ({
  signal: new AbortController().signal,
  log: silentLog(),
  requestId: randomUUID(),
  ...about,
});

/** Runs each maintenance task once, one after the other. */
export async function runMaintenance({ maintenance }: Pick<Core, 'maintenance'>, call: Call = aCall()): Promise<void> {
  for (const task of maintenance) await task.run(call);
}

/** Collects log lines for assertions. */
export function collectingLog(): Log & { readonly lines: readonly string[] } {
  const lines: string[] = [];
  const note =
    (level: string) =>
    (message: string, facts: object = {}): void => {
      lines.push(`${level} ${message} ${JSON.stringify(facts)}`);
    };
  const log = {
    lines,
    debug: note('debug'),
    info: note('info'),
    warn: note('warn'),
    error: note('error'),
    with: (): Log => log,
  };
  return log;
}

/** For `vi.waitFor`: its default of one second is too short on a busy machine. */
export const waitForOptions = { timeout: 20_000 };
