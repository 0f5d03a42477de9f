import { closeSync, writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { descriptorOf } from '../socket-descriptor.ts';
import { checked, type ForeignFunction, libc } from './libc.ts';
import { createSpin } from './spin.ts';

/*
 * Descriptors whose next bytes are wanted at once: /dev/fuse, and connections to servers. Node's own event loop takes as long
 * for one turn as a small request takes in all, and always sleeps before it looks. So they are waited for here, in one call
 * of Node's loop that returns to it whenever it has something to do: its own descriptor is waited for as well, and
 * its timers are asked for. It is Node's loop all the same that everything else runs in.
 */

interface Calls {
  readonly create: ForeignFunction;
  readonly control: ForeignFunction;
  readonly wait: ForeignFunction;
  readonly pair: ForeignFunction;
  readonly duplicate: ForeignFunction;
  readonly read: ForeignFunction;
  readonly nodeLoop: ForeignFunction;
  readonly nodeDescriptor: ForeignFunction;
  readonly nodeTimeout: ForeignFunction;
  readonly nodeTime: ForeignFunction;
}

let made: Calls | undefined;

function calls(): Calls {
  const { func } = libc();
  made ??= {
    create: func('int epoll_create1(int flags)'),
    control: func('int epoll_ctl(int epoll, int operation, int fd, void *event)'),
    wait: func('int epoll_wait(int epoll, void *events, int most, int ms)'),
    pair: func('int socketpair(int family, int type, int protocol, _Out_ int *both)'),
    duplicate: func('int fcntl(int fd, int command, int lowest)'),
    read: func('int64_t read(int fd, void *into, size_t most)'),
    // Node exports them for add-ons that wait in a loop of their own.
    nodeLoop: func('void *uv_default_loop()'),
    nodeDescriptor: func('int uv_backend_fd(void *loop)'),
    nodeTimeout: func('int uv_backend_timeout(void *loop)'),
    nodeTime: func('void uv_update_time(void *loop)'),
  };
  return made;
}

const closeOnExec = 0o2000000;
const nonblock = 0o4000;
const unix = 1;
const stream = 1;
const add = 1;
const remove = 2;
const readable = 1;
const duplicateClosedOnExec = 1030;
const tryAgain = -11;
const eventSize = 12;
const mostEvents = 16;

/** Runs what promises and `process.nextTick` wait for, as Node does after each of its own callbacks. */
const runTicks = (process as unknown as { readonly _tickCallback: () => void })._tickCallback;

interface Watching {
  watch(fd: number, onReadable: () => void): Disposable;
}

let watching: Watching | undefined;

/** Calls whenever there is something to read, or an end or error to find by reading. It is not to be closed while watched. */
export function watchReadable(fd: number, onReadable: () => void): Disposable {
  watching ??= createWatching();
  return watching.watch(fd, onReadable);
}

/** Gives how many bytes were read, 0 at the end, or the negative number of the error. Never waits on what does not block. */
export function readNow(fd: number, into: Uint8Array): number {
  const length = Number(calls().read(fd, into, into.length));
  return length < 0 ? -libc().koffi.errno() : length;
}

/** Where bytes go as they come. */
interface Into {
  buffer(): Buffer;
  received(bytes: number): void;
}

/** Reads from a connection that is paused. Its end, and whatever breaks it, is left to Node to find. */
export function readPromptly(socket: Socket, { buffer, received }: Into): void {
  const fd = descriptorOf(socket);
  if (fd === undefined) return void socket.resume();
  // A number of our own: Node closes its own without asking, and it may then be somebody else's.
  const own = checked('fcntl', calls().duplicate(fd, duplicateClosedOnExec, 0));
  const watch = watchReadable(own, () => {
    const length = socket.destroyed ? 0 : readNow(own, buffer());
    if (length > 0) received(length);
    else if (length !== tryAgain) {
      watch[Symbol.dispose]();
      socket.resume();
    }
  });
  socket.once('close', () => {
    watch[Symbol.dispose]();
    closeSync(own);
  });
}

function createWatching(): Watching {
  const { wait, nodeTime, nodeTimeout } = calls();
  const epoll = checked('epoll_create1', calls().create(closeOnExec));
  const node = calls().nodeLoop();
  const nodeFd: number = calls().nodeDescriptor(node);
  const events = Buffer.alloc(eventSize * mostEvents);
  const handlers = new Map<number, () => void>();
  const spin = createSpin();
  const back = createWayBack(turn);

  function control(operation: number, fd: number): void {
    const event = Buffer.alloc(eventSize);
    event.writeUInt32LE(readable, 0);
    event.writeInt32LE(fd, 4);
    checked('epoll_ctl', calls().control(epoll, operation, fd, event));
  }
  control(add, nodeFd);

  /** How many there are, after `ms` at the latest. */
  function waited(ms: number): number {
    const begun = performance.now();
    let now = begun;
    for (const until = begun + spin.ms; now < until; ) {
      const count: number = wait(epoll, events, mostEvents, 0);
      const before = now;
      now = performance.now();
      spin.looked(now - before);
      if (count !== 0) {
        spin.waited(now - begun);
        return count;
      }
    }
    const count: number = wait(epoll, events, mostEvents, ms);
    spin.waited(performance.now() - begun);
    return count;
  }

  /** Until Node has something to do. */
  function turn(): void {
    for (let isNodes = false; !isNodes && handlers.size > 0; ) {
      nodeTime(node);
      const ms: number = nodeTimeout(node);
      const count: number = ms === 0 ? wait(epoll, events, mostEvents, 0) : waited(ms);
      isNodes = ms === 0;
      // Fewer than none: a signal came.
      for (let i = 0; i < count; i++) {
        const fd = events.readInt32LE(i * eventSize + 4);
        if (fd === nodeFd) isNodes = true;
        else handlers.get(fd)?.();
      }
      runTicks();
    }
  }

  return {
    watch: (fd, onReadable) => {
      control(add, fd);
      handlers.set(fd, onReadable);
      back.want(true);
      return {
        [Symbol.dispose]: () => {
          if (handlers.get(fd) !== onReadable) return;
          handlers.delete(fd);
          control(remove, fd);
          back.want(handlers.size > 0);
        },
      };
    },
  };
}

/** Has Node's loop call, again and again for as long as that is wanted, each time after it has done what else there was. */
function createWayBack(call: () => void): { want(isWanted: boolean): void } {
  const both = [0, 0];
  checked('socketpair', calls().pair(unix, stream | closeOnExec | nonblock, 0, both));
  const [from, to] = both as unknown as readonly [number, number];
  let isWanted = false;
  /** It is called, or will be. */
  let isOnItsWay = false;
  const socket = new Socket({
    ...{ fd: from, readable: true, writable: false },
    onread: {
      // Larger than what comes: Node reads on at once while it is filled.
      buffer: Buffer.alloc(16),
      callback: () => {
        try {
          if (isWanted) call();
        } finally {
          isOnItsWay = false;
          start();
        }
        return true;
      },
    },
  });
  socket.unref();

  function start(): void {
    if (!isWanted || isOnItsWay) return;
    isOnItsWay = true;
    writeSync(to, '.');
  }

  return {
    want: (now) => {
      if (now && !isWanted) socket.ref();
      if (!now && isWanted) socket.unref();
      isWanted = now;
      start();
    },
  };
}
