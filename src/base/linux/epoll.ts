import { checkResult, lazyBindings } from './libc.ts';

/** Waits for several descriptors to become readable; end of file and errors count, too. */
export interface Epoll {
  /** `key` identifies the descriptor in `ready`. The descriptor number may have been reused by then. */
  add(fd: number, key: number): void;
  remove(fd: number): void;
  /** Returns the number of ready descriptors after at most `ms` (-1: no limit). Negative: a signal interrupted the wait. */
  wait(ms: number): number;
  /** Like `wait`, but on another thread. Only one call at a time. */
  waitOnThread(ms: number, done: (count: number) => void): void;
  /** The key of a ready descriptor, valid until the next wait. */
  readyKey(index: number): number;
}

const calls = lazyBindings({
  create: 'int epoll_create1(int flags)',
  control: 'int epoll_ctl(int epoll, int operation, int fd, void *event)',
  wait: 'int epoll_wait(int epoll, void *events, int most, int ms)',
});

const epollCloexec = 0o2000000;
const epollCtlAdd = 1;
const epollCtlDel = 2;
const epollIn = 1;
/** If more are ready, the kernel rotates: the next wait returns the others first. */
const maxEvents = 16;

/** The layout of `struct epoll_event`, which is packed on x86 only. */
export const eventLayout = (arch: string): { readonly size: number; readonly key: number } =>
  arch === 'x64' ? { size: 12, key: 4 } : { size: 16, key: 8 };

export function createEpoll(): Epoll {
  const { control, wait } = calls();
  const { size, key: keyAt } = eventLayout(process.arch);
  const epoll = checkResult('epoll_create1', calls().create(epollCloexec));
  const events = Buffer.alloc(size * maxEvents);

  function change(operation: number, fd: number, key: number): void {
    const event = Buffer.alloc(size);
    event.writeUInt32LE(epollIn, 0);
    event.writeInt32LE(key, keyAt);
    checkResult('epoll_ctl', control(epoll, operation, fd, event));
  }

  return {
    add: (fd, key) => change(epollCtlAdd, fd, key),
    remove: (fd) => change(epollCtlDel, fd, 0),
    wait: (ms) => wait(epoll, events, maxEvents, ms),
    waitOnThread: (ms, done) =>
      wait.async(epoll, events, maxEvents, ms, (failed: unknown, count: number) => done(failed ? -1 : count)),
    readyKey: (index) => events.readInt32LE(index * size + keyAt),
  };
}
