import type { Clock } from '#base/clock.ts';
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
 * before it answers. Undefined: it did not answer (then `onSilent` is called), has ended, or we may not ask.
 */
export async function askProcess<T>(
  folder: string,
  question: () => Promise<T>,
  clock: Clock,
  onSilent?: () => void,
): Promise<T | undefined> {
  if (silent.has(folder) || silent.size >= mostSilent) {
    onSilent?.();
    return undefined;
  }
  const answer = question().catch(() => undefined);
  if (await endsWithin(answer, patienceMs, clock)) return await answer;
  silent.add(folder);
  onSilent?.();
  void answer.then(() => silent.delete(folder));
  return undefined;
}
