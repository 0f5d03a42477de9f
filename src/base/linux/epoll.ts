import { checked, foreign } from './libc.ts';

/** Waits for several descriptors to become readable; end of file and errors count, too. */
export interface Epoll {
  /** `key` identifies the descriptor in `ready`. The descriptor number may have been reused by then. */
  add(fd: number, key: number): void;
  remove(fd: number): void;
  /** Returns the number of ready descriptors after at most `ms` (-1: no limit). Negative: a signal interrupted the wait. */
  wait(ms: number): number;
  /** The same on another thread; one at a time. */
  waitApart(ms: number, done: (count: number) => void): void;
  /** The key of a ready descriptor, valid until the next wait. */
  ready(index: number): number;
}

const calls = foreign({
  create: 'int epoll_create1(int flags)',
  control: 'int epoll_ctl(int epoll, int operation, int fd, void *event)',
  wait: 'int epoll_wait(int epoll, void *events, int most, int ms)',
});

const closeOnExec = 0o2000000;
const adding = 1;
const removing = 2;
const readable = 1;
/** If more are ready, the kernel rotates: the next wait returns the others first. */
const mostEvents = 16;

/** The layout of `struct epoll_event`, which is packed on x86 only. */
export const eventLayout = (arch: string): { readonly size: number; readonly key: number } =>
  arch === 'x64' ? { size: 12, key: 4 } : { size: 16, key: 8 };

export function createEpoll(): Epoll {
  const { control, wait } = calls();
  const { size, key: keyAt } = eventLayout(process.arch);
  const epoll = checked('epoll_create1', calls().create(closeOnExec));
  const events = Buffer.alloc(size * mostEvents);

  function change(operation: number, fd: number, key: number): void {
    const event = Buffer.alloc(size);
    event.writeUInt32LE(readable, 0);
    event.writeInt32LE(key, keyAt);
    checked('epoll_ctl', control(epoll, operation, fd, event));
  }

  return {
    add: (fd, key) => change(adding, fd, key),
    remove: (fd) => change(removing, fd, 0),
    wait: (ms) => wait(epoll, events, mostEvents, ms),
    waitApart: (ms, done) =>
      wait.async(epoll, events, mostEvents, ms, (failed: unknown, count: number) => done(failed ? -1 : count)),
    ready: (index) => events.readInt32LE(index * size + keyAt),
  };
}
