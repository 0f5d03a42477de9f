import { closeSync, write, writeSync } from 'node:fs';
import { getSystemErrorName, promisify } from 'node:util';
import { isErrno } from '#base/errno.ts';
import { readNow, watchReadable } from '#base/linux/watch-readable.ts';

/** Memory that one request is read into: at least `maxWrite + requestOverhead` bytes. */
export interface Slot {
  readonly place: number;
  readonly buffer: Buffer;
  readonly view: DataView;
}

export interface DeviceOptions {
  /** Its own: it is closed at the end, also if it cannot be opened. */
  readonly fd: number;
  /** Asked before each read, also if nothing comes of it, for memory that is then read into. Undefined: nothing is read until `resume`. */
  readonly nextSlot: () => Slot | undefined;
  /** A request of so many bytes lies there. */
  readonly onRequest: (slot: Slot, length: number) => void;
  /** The kernel could make nothing of what was written; if it was an answer, whoever waited was told EIO. */
  readonly onRejected?: (cause: unknown) => void;
  /** Unmounted (ENODEV) or aborted (ECONNABORTED), or whatever else ended it. */
  readonly onEnd: (code: string) => void;
}

export interface Device extends Disposable {
  /** False: nobody waits for it any more. */
  write(bytes: Uint8Array): boolean;
  /** The same by another thread, for what may wait for an answer of ours: one at a time in this process. */
  writeInThread(bytes: Uint8Array): Promise<boolean>;
  /** There may be memory again. */
  resume(): void;
  /** Nothing more is read. */
  pause(): void;
}

const writeAsync = promisify(write);
/** Node has few threads, and one that waits in the kernel serves nobody else: what waits here takes one of them. */
let lastThreadWrite: Promise<unknown> = Promise.resolve();

/** Requests that are read one after the other before anything else gets its turn. */
const maxReadsPerTurn = 8;

/** Interrupted before it was read, or nothing there: not an end. */
const transientErrors = new Set(['EAGAIN', 'EINTR', 'ENOENT']);

export function openDevice({ fd, nextSlot: next, onRequest, onRejected: onRefused, onEnd }: DeviceOptions): Device {
  using failing = new DisposableStack();
  failing.defer(() => closeSync(fd));
  let isClosed = false;
  let watch: Disposable | undefined;
  let threadWrite: Promise<void> | undefined;

  function stopReading(): void {
    watch?.[Symbol.dispose]();
    watch = undefined;
  }

  function end(code: string): void {
    if (isClosed) return;
    isClosed = true;
    stopReading();
    // One that is on its way by another thread must not reach whoever gets the number next.
    if (threadWrite === undefined) closeSync(fd);
    else void threadWrite.then(() => closeSync(fd));
    // Whoever finds the end is in the middle of something.
    setImmediate(() => onEnd(code));
  }

  function readRequests(): void {
    for (let i = 0; i < maxReadsPerTurn && watch !== undefined; i++) {
      const slot = next();
      if (slot === undefined) {
        stopReading();
        return;
      }
      const length = readNow(fd, slot.buffer);
      if (length < 0) {
        const code = getSystemErrorName(length);
        if (!transientErrors.has(code)) end(code);
        return;
      }
      onRequest(slot, length);
    }
  }

  const startReading = (): void => {
    if (!isClosed) watch ??= watchReadable(fd, readRequests);
  };
  startReading();
  failing.move();
  // Interrupted and gone meanwhile, or a request that somebody else answered; or unmounted.
  const rejected = (cause: unknown): false => {
    if (isErrno(cause, 'ENOENT', 'ENODEV', 'ECONNABORTED', 'EPERM')) return false;
    if (!isErrno(cause, 'EINVAL')) throw cause;
    onRefused?.(cause);
    return false;
  };
  return {
    write: (bytes) => {
      // Its number may be somebody else's by now.
      if (isClosed) return false;
      try {
        writeSync(fd, bytes);
        return true;
      } catch (cause) {
        return rejected(cause);
      }
    },
    writeInThread: async (bytes) => {
      const before = lastThreadWrite;
      const { promise: done, resolve } = Promise.withResolvers<void>();
      lastThreadWrite = done;
      await before;
      try {
        if (isClosed) return false;
        const written = writeAsync(fd, bytes);
        threadWrite = written.then(nothing, nothing);
        await written;
        return true;
      } catch (cause) {
        return rejected(cause);
      } finally {
        threadWrite = undefined;
        resolve();
      }
    },
    resume: startReading,
    pause: stopReading,
    [Symbol.dispose]: () => end('closed'),
  };
}

const nothing = (): void => undefined;
