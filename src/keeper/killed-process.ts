import { readdirSync, readFileSync } from 'node:fs';

/**
 * Processes that were killed and do not end. A thread that waits in the kernel for something of a mount of ours (a
 * notification for the lock of a directory) cannot be interrupted; what it waits for is held by an application until its request is
 * answered; and that is what a successor would do, if it did not wait for the end of the process first.
 *
 * So a killed process counts as gone when its main thread has ended, and each thread that is left sleeps uninterruptibly,
 * inside the kernel (D), with SIGKILL pending or on its way out: such a thread never returns to its program. Reading requests,
 * answering them, sending calls and changing the journal are the main thread's alone, which is why a main thread in D is not
 * enough: a call that it had begun (making the journal larger) could still be carried out. What the others had begun may be, once:
 * - a notification: the kernel forgets a name, as it may at any time, and asks for it again;
 * - an answer: taken if it is the first, refused (ENOENT) if not, as with one written just before the end;
 * - something sent on a connection: refused (EPIPE) once the successor has half-closed it, which it does before any change.
 *
 * Only `stat`, `task` and our own `fdinfo` are read, which take no lock that anybody sleeps with. Others (`cmdline`, `environ`, `maps`, `mem`)
 * wait for the memory of the process, and with it this one would.
 */

interface Thread {
  readonly state: string;
  readonly flags: number;
  /** Of the whole process. */
  readonly threads: number;
  /** Sent to this thread; a signal that kills the process is sent to each. */
  readonly pending: number;
}

const exiting = 4;
const sigkill = 1 << 8;
const ended = ['Z', 'X'];
/** Of a program of ours; more are not looked at. */
const maxThreads = 1024;

/** It was killed, or is ending, and may yet hang in there: its main thread runs nothing any more. */
export function hasMainThreadEnded(pidfd: number): boolean {
  return verified(pidfd, (pid) => hasEnded(read(`/proc/${pid}/stat`)));
}

/** Which threads are left, if none of them will ever return to its program. To be asked twice: see `processes.ts`. */
export function stuckThreads(pidfd: number): string | undefined {
  let ids: readonly string[] = [];
  const areStuck = verified(pidfd, (pid) => {
    const folder = `/proc/${pid}/task`;
    ids = readdirSync(folder);
    if (ids.length > maxThreads) return false;
    const all = ids.map((id) => read(`${folder}/${id}/stat`));
    const main = all[ids.indexOf(String(pid))];
    // A listing that is read while threads end may lack some.
    return main !== undefined && hasEnded(main) && main.threads === ids.length && all.every(neverReturns);
  });
  return areStuck ? ids.join(' ') : undefined;
}

/**
 * The number of a process is not given to another one before it has ended and its parent was told: if its descriptor has the
 * same number before and after, all that was read in between was about it.
 */
function verified(pidfd: number, look: (pid: number) => boolean): boolean {
  try {
    const pid = pidOf(pidfd);
    return pid > 0 && look(pid) && pidOf(pidfd) === pid;
  } catch {
    // It has ended meanwhile, or a thread has, or nothing is told about it here: nothing is certain.
    return false;
  }
}

/** As this process sees it; -1 when it has ended, 0 if it is in a process namespace that cannot be seen from here. */
const pidOf = (pidfd: number): number =>
  Number(/^Pid:\t(-?\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${pidfd}`, 'utf8'))?.[1] ?? 0);

const hasEnded = ({ state }: Thread): boolean => ended.includes(state);

const neverReturns = (thread: Thread): boolean =>
  hasEnded(thread) || (thread.state === 'D' && ((thread.pending & sigkill) !== 0 || (thread.flags & exiting) !== 0));

/** proc(5). The name in parentheses may contain anything. */
function read(path: string): Thread {
  const text = readFileSync(path, 'utf8');
  const [state = '', ...fields] = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const field = (number: number): number => Number(fields[number - 4]);
  return { state, flags: field(9), threads: field(20), pending: field(31) };
}
