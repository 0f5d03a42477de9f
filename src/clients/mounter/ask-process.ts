import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { endsWithin } from '#base/wait.ts';

/** The kernel answers at once, also on a busy machine. */
const patienceMs = 500;
/** Each keeps a thread of those that Node has for all files. */
const mostSilent = 8;
/** Processes of which a question was not answered, by their folders in /proc. All of this program share the threads. */
const silent = new Set<string>();

/**
 * What /proc tells of a process of somebody else. A question about one that is stuck, on a server or a file system that
 * is gone, can wait as long as that is, and cannot be taken back: it is left behind, and that process is not asked again
 * before it answers. Undefined: there is no answer. `onUnknown` is called unless that is because the process has ended.
 */
export async function askProcess<T>(
  folder: string,
  question: () => Promise<T>,
  clock: Clock,
  onUnknown?: () => void,
): Promise<T | undefined> {
  if (silent.has(folder) || silent.size >= mostSilent) {
    onUnknown?.();
    return undefined;
  }
  const answer = question().catch((thrown: unknown) => {
    if (!isErrno(thrown, 'ENOENT', 'ESRCH')) onUnknown?.();
    return undefined;
  });
  if (await endsWithin(answer, patienceMs, clock)) return await answer;
  silent.add(folder);
  onUnknown?.();
  void answer.then(() => silent.delete(folder));
  return undefined;
}
