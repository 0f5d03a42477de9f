import { closeSync, writeSync } from 'node:fs';
import { Socket } from 'node:net';
// The global of that name is looked up anew each time, which takes longer than to ask for the time.
import { performance } from 'node:perf_hooks';
import { descriptorOf } from '../socket-descriptor.ts';
import { createEpoll, type Epoll } from './epoll.ts';
import { foreign, libc, SystemError } from './libc.ts';
import { type NodeLoop, openNodeLoop } from './node-loop.ts';
import { duplicate, streamPair } from './socket-pair.ts';
import { createSpin } from './spin.ts';

/*
 * Descriptors whose next bytes are wanted at once: /dev/fuse, and connections to servers. Node's own event loop takes as long
 * for one turn as a small request takes in all, and always sleeps before it looks. So they are waited for here, in one call
 * of Node's loop that returns to it whenever it has something to do: its own descriptor is waited for as well, and
 * its timers are asked for. It is Node's loop all the same that everything else runs in. Where Node is not as it has to be
 * for that, another thread waits, which is slower.
 */

const calls = foreign({ read: 'int64_t read(int fd, void *into, size_t most)' });

const tryAgain = -11;
/** Of Node's own loop, among those that are watched. */
const nodeKey = 0;
/** After nothing is watched any more, a thread waits on for so long at most. */
const waitApartMs = 100;

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

/** Reads from a connection that is paused. Its end is left to Node to find. */
export function readPromptly(socket: Socket, { buffer, received }: Into): void {
  const fd = descriptorOf(socket);
  if (fd === undefined) return void socket.resume();
  // A number of our own: Node closes its own without asking, and it may then be somebody else's.
  const own = duplicate(fd);
  const watch = watchReadable(own, () => {
    const length = socket.destroyed ? 0 : readNow(own, buffer());
    if (length > 0) received(length);
    else if (length !== tryAgain) {
      watch[Symbol.dispose]();
      if (length === 0) socket.resume();
      // The system tells it once; Node would take it for an end, or read on to where nobody expects it.
      else socket.destroy(new SystemError('read', -length));
    }
  });
  socket.once('close', () => {
    watch[Symbol.dispose]();
    closeSync(own);
  });
}

function createWatching(): Watching {
  const epoll = createEpoll();
  const handlers = new Map<number, () => void>();
  const want = beginWaiting(epoll, handlers);
  let keys = nodeKey;
  return {
    watch: (fd, onReadable) => {
      const key = ++keys;
      epoll.add(fd, key);
      handlers.set(key, onReadable);
      want();
      return {
        [Symbol.dispose]: () => {
          if (!handlers.delete(key)) return;
          epoll.remove(fd);
          want();
        },
      };
    },
  };
}

/** By what the system tells them by. */
type Handlers = ReadonlyMap<number, () => void>;

/** What it gives is called whenever there is another handler, or one less. */
function beginWaiting(epoll: Epoll, handlers: Handlers): () => void {
  try {
    return besideNode(openNodeLoop(), epoll, handlers);
  } catch (cause) {
    process.emitWarning(`descriptors are waited for by a thread, which is slower: ${String(cause)}`);
    return byThread(epoll, handlers);
  }
}

function byThread(epoll: Epoll, handlers: Handlers): () => void {
  let isWaiting = false;

  function wait(): void {
    if (isWaiting || handlers.size === 0) return;
    isWaiting = true;
    epoll.waitApart(waitApartMs, (count) => {
      isWaiting = false;
      try {
        for (let i = 0; i < count; i++) handlers.get(epoll.ready(i))?.();
      } finally {
        wait();
      }
    });
  }
  return wait;
}

function besideNode(node: NodeLoop, epoll: Epoll, handlers: Handlers): () => void {
  const spin = createSpin();
  epoll.add(node.fd, nodeKey);
  const back = createWayBack(turn);

  /** How many there are, after `ms` at the latest. */
  function waited(ms: number): number {
    const begun = performance.now();
    let now = begun;
    for (const until = begun + spin.ms; now < until; ) {
      const count = epoll.wait(0);
      const before = now;
      now = performance.now();
      spin.looked(now - before);
      if (count !== 0) {
        spin.waited(now - begun);
        return count;
      }
    }
    const count = epoll.wait(ms);
    spin.waited(performance.now() - begun);
    return count;
  }

  /** Until Node has something to do. */
  function turn(): void {
    for (let isNodes = false; !isNodes && handlers.size > 0; ) {
      const ms = node.sleepMs();
      const count = ms === 0 ? epoll.wait(0) : waited(ms);
      isNodes = ms === 0;
      for (let i = 0; i < count; i++) {
        const key = epoll.ready(i);
        if (key === nodeKey) isNodes = true;
        else handlers.get(key)?.();
      }
      node.runTicks();
    }
  }

  return () => back.want(handlers.size > 0);
}

/** Has Node's loop call, again and again for as long as that is wanted, each time after it has done what else there was. */
function createWayBack(call: () => void): { want(isWanted: boolean): void } {
  const [from, to] = streamPair();
  let isWanted = false;
  /** It is called, or will be. */
  let isOnItsWay = false;
  const socket = new Socket({
    fd: from,
    readable: true,
    writable: false,
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
