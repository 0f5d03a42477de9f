import { closeSync, write, writeSync } from 'node:fs';
import { getSystemErrorName, promisify } from 'node:util';
import { isErrno } from '#base/errno.ts';
import { readNow, watchReadable } from '#base/linux/watch-readable.ts';

/** The memory for one request: at least `maxWrite + requestOverhead` bytes. */
export interface Slot {
  readonly index: number;
  readonly buffer: Buffer;
  readonly view: DataView;
}

export interface DeviceOptions {
  /** The device owns the descriptor and closes it at the end, also if `openDevice` fails. */
  readonly fd: number;
  /**
   * Returns the memory for the next read. Called before each read, also if the read returns nothing. Undefined: reading pauses
   * until `resume`.
   */
  readonly nextSlot: () => Slot | undefined;
  /** Called when a request of `length` bytes was read into the slot. */
  readonly onRequest: (slot: Slot, length: number) => void;
  /** The kernel rejected a message (EINVAL). If it was a reply, the kernel returned EIO to the application. */
  readonly onRejected?: (cause: unknown) => void;
  /** Called when the device has ended: unmounted (ENODEV), aborted (ECONNABORTED), closed here, or another error. */
  readonly onEnd: (code: string) => void;
}

export interface Device extends Disposable {
  /** Returns false if the caller of the request no longer waits. */
  write(bytes: Uint8Array): boolean;
  /** Writes in another thread, for notifications that may wait for one of our own replies. Such writes run one at a time in this process. */
  writeInThread(bytes: Uint8Array): Promise<boolean>;
  /** Continues to read after `nextSlot` returned undefined. */
  resume(): void;
  /** Stops reading. */
  pause(): void;
}

const writeAsync = promisify(write);
/**
 * Node has few threads, and a thread that waits in the kernel is blocked. So these writes queue up and take one thread at most.
 */
let lastThreadWrite: Promise<unknown> = Promise.resolve();

/** The number of requests to read before the event loop continues. */
const maxReadsPerTurn = 8;

/** Errors that do not end the device: the request was interrupted before it was read, or there is none. */
const transientErrors = new Set(['EAGAIN', 'EINTR', 'ENOENT']);

export function openDevice({ fd, nextSlot, onRequest, onRejected, onEnd }: DeviceOptions): Device {
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
    // Close it only after a write in another thread has ended: otherwise that could write to a reused descriptor.
    if (threadWrite === undefined) closeSync(fd);
    else void threadWrite.then(() => closeSync(fd));
    // Asynchronously, since the caller that found the end is still busy.
    setImmediate(() => onEnd(code));
  }

  function readRequests(): void {
    for (let i = 0; i < maxReadsPerTurn && watch !== undefined; i++) {
      const slot = nextSlot();
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
  // The request was interrupted, another process has answered it, or the file system was unmounted.
  const handleWriteError = (cause: unknown): false => {
    if (isErrno(cause, 'ENOENT', 'ENODEV', 'ECONNABORTED', 'EPERM')) return false;
    if (!isErrno(cause, 'EINVAL')) throw cause;
    onRejected?.(cause);
    return false;
  };
  return {
    write: (bytes) => {
      // The descriptor number may have been reused.
      if (isClosed) return false;
      try {
        writeSync(fd, bytes);
        return true;
      } catch (cause) {
        return handleWriteError(cause);
      }
    },
    writeInThread: async (bytes) => {
      const previousWrite = lastThreadWrite;
      const { promise: done, resolve } = Promise.withResolvers<void>();
      lastThreadWrite = done;
      await previousWrite;
      try {
        if (isClosed) return false;
        const written = writeAsync(fd, bytes);
        threadWrite = written.then(ignore, ignore);
        await written;
        return true;
      } catch (cause) {
        return handleWriteError(cause);
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

const ignore = (): void => undefined;
