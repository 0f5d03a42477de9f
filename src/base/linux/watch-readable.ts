import { closeSync, writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { constants } from 'node:os';
// Imported, since looking up the global takes longer than reading the time.
import { performance } from 'node:perf_hooks';
import { descriptorOf } from '../socket-descriptor.ts';
import { createEpoll, type Epoll } from './epoll.ts';
import { lazyBindings, libc, SystemError } from './libc.ts';
import { type NodeLoop, openNodeLoop } from './node-loop.ts';
import { duplicate, streamPair } from './socket-pair.ts';
import { createSpin } from './spin.ts';

/*
 * Watches descriptors whose data must be read with low latency: /dev/fuse, and connections to servers. One turn of Node's own event loop takes
 * as long as a small request in all, and always sleeps before it polls. So this waits in one callback of Node's loop, which returns as soon
 * as Node has something to do: it also watches the descriptor of Node's loop, and respects Node's timers. Everything else still runs in
 * Node's loop. If Node lacks the internals for that, another thread waits, which is slower.
 */

const calls = lazyBindings({ read: 'int64_t read(int fd, void *into, size_t most)' });

const negatedEagain = -constants.errno.EAGAIN;
/** The key of Node's own loop. */
const nodeKey = 0;
/** The longest wait of a thread, which does not notice that the last watch ended. */
const threadWaitMs = 100;

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
export function readNow(fd: number, buffer: Uint8Array): number {
  const length = Number(calls().read(fd, buffer, buffer.length));
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
  const ownFd = duplicate(fd);
  const watch = watchReadable(ownFd, () => {
    const length = socket.destroyed ? 0 : readNow(ownFd, buffer());
    if (length > 0) received(length);
    else if (length !== negatedEagain) {
      watch[Symbol.dispose]();
      if (length === 0) socket.resume();
      // The kernel reports the error only once. Node would take it for the end, or keep reading into a broken stream.
      else socket.destroy(new SystemError('read', -length));
    }
  });
  socket.once('close', () => {
    watch[Symbol.dispose]();
    closeSync(ownFd);
  });
}

function createReadableWatcher(): ReadableWatcher {
  const epoll = createEpoll();
  const handlers = new Map<number, () => void>();
  const updateWaiting = startWaiting(epoll, handlers);
  let lastKey = nodeKey;
  return {
    watch: (fd, onReadable) => {
      const key = ++lastKey;
      epoll.add(fd, key);
      handlers.set(key, onReadable);
      updateWaiting();
      return {
        [Symbol.dispose]: () => {
          if (!handlers.delete(key)) return;
          epoll.remove(fd);
          updateWaiting();
        },
      };
    },
  };
}

/** Handlers by their epoll keys. */
type Handlers = ReadonlyMap<number, () => void>;

/** Returns a function to call whenever a handler was added or removed. */
function startWaiting(epoll: Epoll, handlers: Handlers): () => void {
  try {
    return waitInNodeLoop(openNodeLoop(), epoll, handlers);
  } catch (cause) {
    process.emitWarning(`descriptors are waited for by a thread, which is slower: ${String(cause)}`);
    return waitOnThread(epoll, handlers);
  }
}

function waitOnThread(epoll: Epoll, handlers: Handlers): () => void {
  let isWaiting = false;

  function wait(): void {
    if (isWaiting || handlers.size === 0) return;
    isWaiting = true;
    epoll.waitOnThread(threadWaitMs, (count) => {
      isWaiting = false;
      try {
        for (let i = 0; i < count; i++) handlers.get(epoll.readyKey(i))?.();
      } finally {
        wait();
      }
    });
  }
  return wait;
}

function waitInNodeLoop(node: NodeLoop, epoll: Epoll, handlers: Handlers): () => void {
  const spin = createSpin();
  epoll.add(node.fd, nodeKey);
  const loopCallback = createRepeatedCallback(runUntilNodeIsDue);

  /** Polls first, then sleeps for at most `ms`. Returns the number of ready descriptors. */
  function pollThenWait(ms: number): number {
    const startedAt = performance.now();
    let now = startedAt;
    for (const pollUntil = startedAt + spin.pollMs; now < pollUntil; ) {
      const count = epoll.wait(0);
      const before = now;
      now = performance.now();
      spin.recordPoll(now - before);
      if (count !== 0) {
        spin.recordWait(now - startedAt);
        return count;
      }
    }
    const count = epoll.wait(ms);
    spin.recordWait(performance.now() - startedAt);
    return count;
  }

  /** Runs until Node has something to do. */
  function runUntilNodeIsDue(): void {
    for (let isNodeDue = false; !isNodeDue && handlers.size > 0; ) {
      const ms = node.sleepMs();
      const count = ms === 0 ? epoll.wait(0) : pollThenWait(ms);
      isNodeDue = ms === 0;
      for (let i = 0; i < count; i++) {
        const key = epoll.readyKey(i);
        if (key === nodeKey) isNodeDue = true;
        else handlers.get(key)?.();
      }
      node.runTicks();
    }
  }

  return () => loopCallback.setWanted(handlers.size > 0);
}

/** Makes Node's loop call `call` repeatedly while wanted, each time after it has handled its other events. */
function createRepeatedCallback(call: () => void): { setWanted(isWanted: boolean): void } {
  const [from, to] = streamPair();
  let isWanted = false;
  /** A byte is in the pipe, or `call` is running. */
  let isPending = false;
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
          isPending = false;
          start();
        }
        return true;
      },
    },
  });
  socket.unref();

  function start(): void {
    if (!isWanted || isPending) return;
    isPending = true;
    writeSync(to, '.');
  }

  return {
    setWanted: (wanted) => {
      if (wanted && !isWanted) socket.ref();
      if (!wanted && isWanted) socket.unref();
      isWanted = wanted;
      start();
    },
  };
}
