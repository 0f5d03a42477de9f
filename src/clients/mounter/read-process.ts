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
 * Reads something of another process from /proc. Reading about a process that hangs on a dead server or file system can block as long as
 * the server is gone, and cannot be cancelled: the read is abandoned, and that process is not read again until the read ends. Undefined:
 * no answer. Calls `onUnknown`, unless the process has ended.
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
