import { shutDown } from '#base/linux/descriptor-sockets.ts';
import { checkResult, lazyBindings, libc, SystemError } from '#base/linux/libc.ts';

/** System calls for descriptors, sockets and processes that Node does not offer. */

const calls = lazyBindings({
  option: 'int getsockopt(int fd, int level, int name, void *value, void *length)',
  poll: 'int poll(void *which, uint64_t count, int ms)',
  lock: 'int flock(int fd, int how)',
  wait: 'int waitpid(int pid, void *status, int options)',
  // The C library of Ubuntu 22.04 has no wrappers for these.
  system: 'int64_t syscall(int64_t number, int64_t a, int64_t b, int64_t c, int64_t d)',
});

const solSocket = 1;
const soPeerCred = 17;
const soPeerPidfd = 77;
const syscallNumber = { pidfdSendSignal: 424, pidfdOpen: 434 } as const;
const sigkill = 9;
const noSignal = 0;
const anyChild = -1;
const waitNoHang = 1;
const pollIn = 1;

export interface Peer {
  /** The pid in this process's namespace; 0 if its pid namespace is not visible from here. */
  readonly pid: number;
  readonly uid: number;
}

/** The peer's credentials, from the kernel. */
export function peerCredentials(fd: number): Peer {
  const value = Buffer.alloc(12);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(value.length);
  checkResult('getsockopt', calls().option(fd, solSocket, soPeerCred, value, length));
  return { pid: value.readInt32LE(0), uid: value.readUInt32LE(4) };
}

/** Root and our own user; no other user is accepted. */
export const isTrusted = ({ uid }: Peer): boolean => uid === 0 || uid === process.getuid?.();

/** A pidfd. It refers to this process even if its pid is reused. */
export const openPidfd = (pid: number): number =>
  checkResult('pidfd_open', calls().system(syscallNumber.pidfdOpen, pid, 0, 0, 0));

/**
 * A pidfd of the peer, in any namespace. Undefined: its pid namespace is not visible from here, and the kernel (before
 * 6.5) offers only the pid.
 */
export function openPeerPidfd(fd: number): number | undefined {
  const value = Buffer.alloc(4);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(value.length);
  if (Number(calls().option(fd, solSocket, soPeerPidfd, value, length)) === 0) return value.readInt32LE(0);
  const { pid } = peerCredentials(fd);
  return pid === 0 ? undefined : openPidfd(pid);
}

/** False: it is alive, and belongs to another user or to a pid namespace that is not below this one. */
export const canKill = (pidfd: number): boolean =>
  Number(calls().system(syscallNumber.pidfdSendSignal, pidfd, noSignal, 0, 0)) === 0 || hasEnded(pidfd);

/** Idempotent: succeeds if the process has ended. */
export function killProcess(pidfd: number): void {
  const sent = Number(calls().system(syscallNumber.pidfdSendSignal, pidfd, sigkill, 0, 0));
  if (sent < 0 && !hasEnded(pidfd)) throw new SystemError('pidfd_send_signal', libc().koffi.errno());
}

/** True when all threads are gone and all descriptors closed. */
export function hasEnded(pidfd: number): boolean {
  const pollFd = Buffer.alloc(8);
  pollFd.writeInt32LE(pidfd, 0);
  pollFd.writeInt16LE(pollIn, 4);
  return checkResult('poll', calls().poll(pollFd, 1, 0)) > 0;
}

/**
 * Whether a child is alive, including one started before an execve(2). Reaps ended children, so Node does not see them
 * exit.
 */
export function hasChildren(): boolean {
  const status = Buffer.alloc(4);
  let found: number;
  do found = Number(calls().wait(anyChild, status, waitNoHang));
  while (found > 0);
  return found === 0;
}

/** False: another process holds the lock. It is released when the last copy of the descriptor is closed. */
export function tryLock(fd: number): boolean {
  if (Number(calls().lock(fd, 2 | 4)) === 0) return true;
  const failure = new SystemError('flock', libc().koffi.errno());
  if (failure.code === 'EAGAIN') return false;
  throw failure;
}

const socketsWithThreads = new Set<number>();

/**
 * Shuts the socket down at exit, because a thread waits on it and Node waits for its threads even in `process.exit`.
 * Dispose before closing the descriptor.
 */
export function shutDownAtExit(fd: number): Disposable {
  if (socketsWithThreads.size === 0) process.on('exit', shutDownSockets);
  socketsWithThreads.add(fd);
  return {
    [Symbol.dispose]: () => {
      socketsWithThreads.delete(fd);
      if (socketsWithThreads.size === 0) process.off('exit', shutDownSockets);
    },
  };
}

function shutDownSockets(): void {
  for (const fd of socketsWithThreads) shutDown(fd);
}
