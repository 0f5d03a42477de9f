import { readdirSync, readFileSync } from 'node:fs';

/**
 * Detects killed processes that do not exit. A thread blocked in the kernel on one of our mounts (a notification
 * waiting for a directory's lock) cannot be interrupted. An application holds that lock until its request is answered,
 * and only a successor would answer it, which would wait for the exit of this process first.
 *
 * So a killed process counts as gone when its main thread has ended and every remaining thread is in uninterruptible
 * sleep (D) with SIGKILL pending, or exiting: such a thread never returns to user space. Only the main thread reads
 * requests, answers them, sends calls and changes the journal. A main thread in D is therefore not enough: a call it
 * had started (growing the journal) could still complete. Calls that the other threads had started may complete once:
 * - a notification: the kernel forgets a name, which it may do at any time, and looks it up again;
 * - an answer: accepted if it is the first, else refused (ENOENT), as with one written just before the end;
 * - data sent on a connection: refused (EPIPE) once the successor has half-closed it, which it does before any change.
 *
 * Only `stat`, `task` and our own `fdinfo` are read: they take no lock that a sleeping thread holds. Others (`cmdline`,
 * `environ`, `maps`, `mem`) wait for the memory of the process, and this process would hang with it.
 */

interface Thread {
  readonly state: string;
  readonly flags: number;
  /** Number of threads of the whole process. */
  readonly threads: number;
  /** Signals pending for this thread. A signal that kills the process is sent to every thread. */
  readonly pending: number;
}

const exitingFlag = 4;
const sigkillMask = 1 << 8;
const endedStates = ['Z', 'X'];
/** More than any of our programs has; larger processes are not inspected. */
const maxThreads = 1024;

/** The process was killed or is exiting and may still hang; its main thread runs no more code. */
export function hasMainThreadEnded(pidfd: number): boolean {
  return checkProcess(pidfd, (pid) => hasEnded(readThread(`/proc/${pid}/stat`)));
}

/**
 * The ids of the remaining threads if none of them can return to user space. Call it twice and compare: see
 * `processes.ts`.
 */
export function stuckThreads(pidfd: number): string | undefined {
  let ids: readonly string[] = [];
  const areStuck = checkProcess(pidfd, (pid) => {
    const folder = `/proc/${pid}/task`;
    ids = readdirSync(folder);
    if (ids.length > maxThreads) return false;
    const all = ids.map((id) => readThread(`${folder}/${id}/stat`));
    const main = all[ids.indexOf(String(pid))];
    // A listing read while threads exit may be incomplete.
    return main !== undefined && hasEnded(main) && main.threads === ids.length && all.every(neverReturns);
  });
  return areStuck ? ids.join(' ') : undefined;
}

/**
 * A pid is not reused before its process has ended and was reaped. If the pidfd shows the same pid before and after,
 * everything read in between was about that process.
 */
function checkProcess(pidfd: number, check: (pid: number) => boolean): boolean {
  try {
    const pid = pidOf(pidfd);
    return pid > 0 && check(pid) && pidOf(pidfd) === pid;
  } catch {
    // The process or a thread has ended meanwhile, or procfs is not readable here: the state is unknown.
    return false;
  }
}

/** The pid in this process's namespace. -1: it has ended; 0: its pid namespace is not visible from here. */
const pidOf = (pidfd: number): number =>
  Number(/^Pid:\t(-?\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${pidfd}`, 'utf8'))?.[1] ?? 0);

const hasEnded = ({ state }: Thread): boolean => endedStates.includes(state);

const neverReturns = (thread: Thread): boolean =>
  hasEnded(thread) ||
  (thread.state === 'D' && ((thread.pending & sigkillMask) !== 0 || (thread.flags & exitingFlag) !== 0));

/** See proc(5). The name in parentheses may contain any character. */
function readThread(path: string): Thread {
  const text = readFileSync(path, 'utf8');
  const [state = '', ...fields] = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const field = (number: number): number => Number(fields[number - 4]);
  return { state, flags: field(9), threads: field(20), pending: field(31) };
}
