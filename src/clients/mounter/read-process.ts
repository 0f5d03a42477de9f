import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { endsWithin } from '#base/wait.ts';

/** The kernel answers at once, even on a busy machine. */
const answerTimeoutMs = 500;
/** Each pending read occupies a thread of libuv's pool, which serves all file access. */
const maxSilentProcesses = 8;
/** The /proc folders of processes with a pending read. Shared by the whole program, as the thread pool is. */
const silentProcesses = new Set<string>();

/**
 * Runs `read` on a /proc folder of another process. If that process hangs on a dead server or file system, the read can block until the
 * server is back, and cannot be cancelled. This function then stops waiting and returns undefined, and does not read from that folder again
 * until the blocked read ends. Calls `onUnknown`, unless the process has ended.
 */
export async function readProcess<T>(
  folder: string,
  read: () => Promise<T>,
  clock: Clock,
  onUnknown?: () => void,
): Promise<T | undefined> {
  if (silentProcesses.has(folder) || silentProcesses.size >= maxSilentProcesses) {
    onUnknown?.();
    return undefined;
  }
  const answer = read().catch((thrown: unknown) => {
    if (!isErrno(thrown, 'ENOENT', 'ESRCH')) onUnknown?.();
    return undefined;
  });
  if (await endsWithin(answer, answerTimeoutMs, clock)) return await answer;
  silentProcesses.add(folder);
  onUnknown?.();
  void answer.then(() => silentProcesses.delete(folder));
  return undefined;
}
