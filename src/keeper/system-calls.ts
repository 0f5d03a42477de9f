import { shutDown } from '#base/linux/descriptors.ts';
import { checked, foreign, libc, SystemError } from '#base/linux/libc.ts';

/** Calls that Node does not offer, about descriptors, sockets and other processes. */

const calls = foreign({
  option: 'int getsockopt(int fd, int level, int name, void *value, void *length)',
  poll: 'int poll(void *which, uint64_t count, int ms)',
  lock: 'int flock(int fd, int how)',
  wait: 'int waitpid(int pid, void *status, int options)',
  // The C library of Ubuntu 22.04 has no names for these yet.
  system: 'int64_t syscall(int64_t number, int64_t a, int64_t b, int64_t c, int64_t d)',
});

const solSocket = 1;
const soPeerCred = 17;
const soPeerPidfd = 77;
const number = { pidfdSendSignal: 424, pidfdOpen: 434 } as const;
const sigkill = 9;
const nothing = 0;
const anyChild = -1;
const dontWait = 1;
const readable = 1;

export interface Peer {
  /** As this process sees it; 0 if it is in a process namespace that cannot be seen from here. */
  readonly pid: number;
  readonly uid: number;
}

/** Who connected, or who listens: told by the kernel. */
export function peerCredentials(fd: number): Peer {
  const value = Buffer.alloc(12);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(value.length);
  checked('getsockopt', calls().option(fd, solSocket, soPeerCred, value, length));
  return { pid: value.readInt32LE(0), uid: value.readUInt32LE(4) };
}

/** Root and our own user; everybody else has no business here. */
export const isTrusted = ({ uid }: Peer): boolean => uid === 0 || uid === process.getuid?.();

/** A descriptor that means this process and no other, even when its number is used again. */
export const openPidfd = (pid: number): number => checked('pidfd_open', calls().system(number.pidfdOpen, pid, 0, 0, 0));

/**
 * A descriptor of who connected, or who listens, wherever it runs. Undefined: in a process namespace that cannot be seen from
 * here, and the kernel (before 6.5) has nothing but its number to give.
 */
export function openPeerPidfd(fd: number): number | undefined {
  const value = Buffer.alloc(4);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(value.length);
  if (Number(calls().option(fd, solSocket, soPeerPidfd, value, length)) === 0) return value.readInt32LE(0);
  const { pid } = peerCredentials(fd);
  return pid === 0 ? undefined : openPidfd(pid);
}

/** False: it lives, and is another user's or in a process namespace that is not below this one. */
export const canKill = (pidfd: number): boolean =>
  Number(calls().system(number.pidfdSendSignal, pidfd, nothing, 0, 0)) === 0 || hasEnded(pidfd);

/** Nothing happens to one that has ended. */
export function killProcess(pidfd: number): void {
  const sent = Number(calls().system(number.pidfdSendSignal, pidfd, sigkill, 0, 0));
  if (sent < 0 && !hasEnded(pidfd)) throw new SystemError('pidfd_send_signal', libc().koffi.errno());
}

/** All its threads are gone, and its descriptors closed. */
export function hasEnded(pidfd: number): boolean {
  const which = Buffer.alloc(8);
  which.writeInt32LE(pidfd, 0);
  which.writeInt16LE(readable, 4);
  return checked('poll', calls().poll(which, 1, 0)) > 0;
}

/** Whether a process lives that this one started, before an execve(2) too. Node hears no more of those that have ended. */
export function hasChildren(): boolean {
  const status = Buffer.alloc(4);
  let found: number;
  do found = Number(calls().wait(anyChild, status, dontWait));
  while (found > 0);
  return found === 0;
}

/** False: somebody else has it. It is given back when the last copy of the descriptor is closed. */
export function tryLock(fd: number): boolean {
  if (Number(calls().lock(fd, 2 | 4)) === 0) return true;
  const failure = new SystemError('flock', libc().koffi.errno());
  if (failure.code === 'EAGAIN') return false;
  throw failure;
}

const socketsWithThreads = new Set<number>();

/**
 * A thread waits on this socket. Node waits for its threads before it ends, even in `process.exit`: so the wait is ended
 * then. To be disposed of before the descriptor is closed.
 */
export function shutDownAtExit(fd: number): Disposable {
  if (socketsWithThreads.size === 0) process.on('exit', endWaits);
  socketsWithThreads.add(fd);
  return {
    [Symbol.dispose]: () => {
      socketsWithThreads.delete(fd);
      if (socketsWithThreads.size === 0) process.off('exit', endWaits);
    },
  };
}

function endWaits(): void {
  for (const fd of socketsWithThreads) shutDown(fd);
}
