import { write, writeSync } from 'node:fs';
import { createServer, Socket, type SocketConstructorOpts } from 'node:net';
import { promisify } from 'node:util';

/** Memory that one request is read into: at least `maxWrite + requestOverhead` bytes. */
export interface Slot {
  readonly place: number;
  readonly buffer: Buffer;
  readonly view: DataView;
}

export interface DeviceOptions {
  /** Its own: it is closed at the end. */
  readonly fd: number;
  /** Gives the memory for the next request, which may be the same as before. Undefined: nothing is read until `resume`. */
  readonly next: () => Slot | undefined;
  /** A request of so many bytes lies there. */
  readonly onRequest: (slot: Slot, length: number) => void;
  /** Unmounted (ENODEV) or aborted (ECONNABORTED), or whatever else ended it. */
  readonly onEnd: (code: string) => void;
}

export interface Device extends Disposable {
  /** False: nobody waits for it any more. */
  write(bytes: Uint8Array): boolean;
  /** The same by another thread, for what may wait for an answer of ours: one at a time in this process. */
  writeApart(bytes: Uint8Array): Promise<boolean>;
  /** There may be memory again. */
  resume(): void;
  /** Nothing more is read. */
  pause(): void;
}

const writeByThread = promisify(write);
/** Node has few threads, and one that waits in the kernel serves nobody else: what waits here takes one of them. */
let apart: Promise<unknown> = Promise.resolve();

/** What we use of Node's handle for pipes. None of it is documented; `openDevice` checks that it is there. */
interface PipeHandle {
  open(fd: number): number | undefined;
  useUserBuffer(memory: Uint8Array): void;
}
type PipeClass = new (kind: number) => PipeHandle;

/**
 * Reads requests in Node's own event loop: the descriptor is opened as if it were a pipe, with memory of ours to read into.
 * A thread that reads (`fs.read`) would add a switch between threads to each request, and half the speed would be gone.
 */
export async function openDevice({ fd, next, onRequest, onEnd }: DeviceOptions): Promise<Device> {
  const Pipe = await pipeClass();
  const handle = new Pipe(0);
  handle.open(fd);
  let slot = next();
  const socket = new Socket({
    handle,
    readable: true,
    onread: {
      buffer: slot?.buffer ?? Buffer.alloc(1),
      callback: (length: number) => {
        const before = slot;
        if (before === undefined) return false;
        onRequest(before, length);
        slot = next();
        if (slot !== undefined && slot !== before) handle.useUserBuffer(slot.buffer);
        return slot !== undefined;
      },
    },
  } as unknown as SocketConstructorOpts);
  let code = 'closed';
  socket.on('error', (cause) => {
    code = 'code' in cause ? String(cause.code) : cause.message;
  });
  socket.on('close', () => onEnd(code));
  if (slot !== undefined) socket.read(0);
  // Interrupted and gone meanwhile, or a request that somebody else answered; or unmounted.
  const refused = (cause: unknown): false => {
    if (isCode(cause, 'ENOENT', 'ENODEV', 'ECONNABORTED', 'EPERM')) return false;
    throw cause;
  };
  return {
    write: (bytes) => {
      // Its number may be somebody else's by now.
      if (socket.destroyed) return false;
      try {
        writeSync(fd, bytes);
        return true;
      } catch (cause) {
        return refused(cause);
      }
    },
    writeApart: async (bytes) => {
      const before = apart;
      const { promise: done, resolve } = Promise.withResolvers<void>();
      apart = done;
      await before;
      try {
        if (socket.destroyed) return false;
        await writeByThread(fd, bytes);
        return true;
      } catch (cause) {
        return refused(cause);
      } finally {
        resolve();
      }
    },
    resume: () => {
      if (slot !== undefined || socket.destroyed) return;
      slot = next();
      if (slot === undefined) return;
      handle.useUserBuffer(slot.buffer);
      socket.resume();
    },
    pause: () => void socket.pause(),
    [Symbol.dispose]: () => socket.destroy(),
  };
}

const isCode = (cause: unknown, ...codes: readonly string[]): boolean =>
  cause instanceof Error && 'code' in cause && codes.includes(String(cause.code));

let known: PipeClass | undefined;

/** Node does not export it: it is asked of a server that listens nowhere anybody could reach. */
async function pipeClass(): Promise<PipeClass> {
  if (known !== undefined) return known;
  const server = createServer();
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once('error', reject).listen({ path: `\0stowage-${process.pid}-${Math.random()}` }, resolve);
  await promise;
  const handle = (server as unknown as { readonly _handle?: { readonly constructor: PipeClass } })._handle;
  server.close();
  const found = handle?.constructor;
  if (found?.prototype === undefined || !('open' in found.prototype && 'useUserBuffer' in found.prototype))
    throw new Error(`this version of Node (${process.version}) does not offer what reading /dev/fuse needs`);
  known = found;
  return found;
}
