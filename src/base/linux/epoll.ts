import { checked, foreign } from './libc.ts';

/** Waits for several descriptors at once: for those that have something to read, or an end or error to find by reading. */
export interface Epoll {
  /** `key`: what it is told by. Not the descriptor, whose number may be another's by the time that it is told. */
  add(fd: number, key: number): void;
  remove(fd: number): void;
  /** How many are ready, after `ms` at the latest (-1: whenever that is). Fewer than none: a signal came. */
  wait(ms: number): number;
  /** The same by another thread; one at a time. */
  waitApart(ms: number, done: (count: number) => void): void;
  /** The keys of those, until the next wait. */
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
/** The kernel gives each its turn: those that were given last come last. */
const mostEvents = 16;

/** Of `struct epoll_event`: it is packed on x86 alone. */
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
