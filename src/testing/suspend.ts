import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

const deadlineMs = 30_000;

/**
 * Sends SIGSTOP and waits until every thread of the process has stopped. Threads run on for a moment after the signal.
 */
export async function suspend(pid: number): Promise<void> {
  process.kill(pid, 'SIGSTOP');
  const deadline = performance.now() + deadlineMs;
  while (!isStopped(pid)) {
    if (performance.now() > deadline) throw new Error(`process ${pid} did not stop`);
    await delay(2);
  }
}

/** False while any thread still runs, and after the process has ended. */
export function isStopped(pid: number): boolean {
  try {
    const threads = readdirSync(`/proc/${pid}/task`);
    return threads.every((thread) => stateOf(`/proc/${pid}/task/${thread}/stat`) === 'T');
  } catch {
    // A thread or the process has ended meanwhile.
    return false;
  }
}

/** The state is the field after the program's name. The name is in brackets and may contain any character. */
function stateOf(stat: string): string | undefined {
  const text = readFileSync(stat, 'utf8');
  return text[text.lastIndexOf(')') + 2];
}
