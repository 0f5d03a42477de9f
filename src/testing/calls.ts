import { randomUUID } from 'node:crypto';
import { type Log, silentLog } from '#base/log.ts';
import type { Engine } from '#core/engine.ts';
import type { Call } from '#core/operations.ts';

/** For calling core directly. */
export const aCall = (about: Partial<Call> = {}): Call => ({
  signal: new AbortController().signal,
  log: silentLog(),
  requestId: randomUUID(),
  ...about,
});

/** One pass of each maintenance task, one after the other, so that a test can look at what came of it. */
export async function runMaintenance(
  { maintenance }: Pick<Engine, 'maintenance'>,
  call: Call = aCall(),
): Promise<void> {
  for (const task of maintenance) await task.run(call);
}

/** Keeps what was logged, to be looked at. */
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

/** For `vi.waitFor`: the second that it waits by default is little where others have the processor. */
export const inTime = { timeout: 20_000 };
