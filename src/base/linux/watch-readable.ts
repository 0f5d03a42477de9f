import { closeSync, writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { constants } from 'node:os';
// Imported, since looking up the global takes longer than reading the time.
import { performance } from 'node:perf_hooks';
import { descriptorOf } from '../socket-descriptor.ts';
import { createEpoll, type Epoll } from './epoll.ts';
import { foreign, libc, SystemError } from './libc.ts';
import { type NodeLoop, openNodeLoop } from './node-loop.ts';
import { duplicate, streamPair } from './socket-pair.ts';
import { createSpin } from './spin.ts';

/*
 * Watches descriptors whose data must be read with low latency: /dev/fuse, and connections to servers. One turn of Node's own event loop takes
 * as long as a small request in all, and always sleeps before it polls. So this waits in one callback of Node's loop, which returns as soon
 * as Node has something to do: it also watches the descriptor of Node's loop, and respects Node's timers. Everything else still runs in
 * Node's loop. If Node lacks the internals for that, another thread waits, which is slower.
 */

const calls = foreign({ read: 'int64_t read(int fd, void *into, size_t most)' });

const tryAgain = -constants.errno.EAGAIN;
/** The key of Node's own loop. */
const nodeKey = 0;
/** How long a thread keeps waiting after the last watch ended. */
const waitApartMs = 100;

interface ReadableWatcher {
  watch(fd: number, onReadable: () => void): Disposable;
}

let watcher: ReadableWatcher | undefined;

/** Calls back whenever the descriptor is readable; end of file and errors count, too. Do not close the descriptor while it is watched. */
export function watchReadable(fd: number, onReadable: () => void): Disposable {
  watcher ??= createReadableWatcher();
  return watcher.watch(fd, onReadable);
}

/** Returns the number of bytes read, 0 at the end, or the negated errno. Does not wait if the descriptor is non-blocking. */
export function readNow(fd: number, into: Uint8Array): number {
  const length = Number(calls().read(fd, into, into.length));
  return length < 0 ? -libc().koffi.errno() : length;
}

/** Receives the bytes as they arrive. */
interface ReadTarget {
  buffer(): Buffer;
  received(bytes: number): void;
}

/** Reads from a paused socket. Leaves the end of the stream to Node. */
export function readPromptly(socket: Socket, { buffer, received }: ReadTarget): void {
  const fd = descriptorOf(socket);
  if (fd === undefined) return void socket.resume();
  // A duplicate of our own: Node closes its descriptor without telling us, and the number may then be reused.
  const own = duplicate(fd);
  const watch = watchReadable(own, () => {
    const length = socket.destroyed ? 0 : readNow(own, buffer());
    if (length > 0) received(length);
    else if (length !== tryAgain) {
      watch[Symbol.dispose]();
      if (length === 0) socket.resume();
      // The kernel reports the error only once. Node would take it for the end, or keep reading into a broken stream.
      else socket.destroy(new SystemError('read', -length));
    }
  });
  socket.once('close', () => {
    watch[Symbol.dispose]();
    closeSync(own);
  });
}

function createReadableWatcher(): ReadableWatcher {
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

/** Handlers by their epoll keys. */
type Handlers = ReadonlyMap<number, () => void>;

/** Returns a function to call whenever a handler was added or removed. */
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

  /** The number of ready descriptors, after at most `ms`. */
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

  /** Runs until Node has something to do. */
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

/** Makes Node's loop call `call` repeatedly while wanted, each time after it has handled its other events. */
function createWayBack(call: () => void): { want(isWanted: boolean): void } {
  const [from, to] = streamPair();
  let isWanted = false;
  /** A byte is in the pipe, or `call` is running. */
  let isOnItsWay = false;
  const socket = new Socket({
    fd: from,
    readable: true,
    writable: false,
    onread: {
      // Larger than the single byte: Node keeps reading while the buffer gets filled completely.
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
