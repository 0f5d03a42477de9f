import { opcode, outHeaderSize, resentBit } from './abi.ts';
import { createReplyBuffer, type ReplyBuffer } from './encode.ts';
import { Errno, type ErrnoName, errno } from './errno.ts';
import { type InitOptions, type InitResult, isSupported, negotiate, putInitReply, readInitRequest } from './init.ts';
import { header, type Message, requireBytes, u32, u64 } from './message.ts';
import { type Operation, operationTable } from './operation-table.ts';
import type { Operations, ReadReply, Request } from './operations.ts';

/** Where answers go, and who keeps the memory that requests lie in. */
export interface RequestStore {
  /** The whole answer to the request at that place. It must be written before this returns: its memory is used again. */
  reply(place: number, bytes: Buffer): void;
  /**
   * Nothing is to be said about the request at that place. Its memory stays as it is until the next request is read. For what
   * counts down it is called first: a crash then leaves a count too high, which costs memory, never one too low.
   */
  finished(place: number): void;
  /** Whoever waits for the answer to the request at that place was interrupted: the kernel says so once, to one process. */
  interrupted?(place: number): void;
}

export interface SessionOptions {
  readonly operations: Partial<Operations>;
  readonly initOptions: InitOptions;
  readonly store: RequestStore;
  /** The kernel has said what it can; from now on it asks. */
  readonly onInit?: (agreement: InitResult) => void;
  /** An operation threw what no file system should. It is answered with EIO. */
  readonly onFault?: (operation: string, cause: unknown) => void;
}

/** A request that a predecessor received and may have answered. */
export interface InheritedRequest {
  /** The kernel had told the predecessor that the caller was interrupted. */
  readonly isInterrupted: boolean;
}

export interface Session {
  /** Works on the request that lies at a place of the store's. Never throws. */
  handle(place: number, message: Message, inherited?: InheritedRequest): void;
  /** It is worked on when the function is called that this gives, and counts as pending from now on: it can be interrupted. */
  defer(place: number, message: Message, inherited: InheritedRequest): () => void;
  /** Nobody works on it: it is answered with an error (EIO, or that of an `Errno`), if it is one to be answered. */
  fail(place: number, message: Message, why: Error): void;
  /** The mount is over: whatever has no answer is interrupted. Gives the places of it. */
  end(): readonly number[];
  /** Requests that have no answer yet. */
  readonly pending: number;
}

const interruptedController = new AbortController();
interruptedController.abort(new Errno('EINTR'));

/** Answers of all sessions are put together here, one at a time: what is longer (a directory, data) has memory of its own. */
const scratch = createReplyBuffer(64 * 1024);

export function createSession({ operations, initOptions, store, onInit, onFault }: SessionOptions): Session {
  const pending = new Map<number, PendingRequest>();

  /** The number of the request, with the bit that says it was sent before. */
  function writeHeader({ buffer, view }: ReplyBuffer, { view: asked }: Message, end: number, error: number): Buffer {
    view.setUint32(0, end, true);
    view.setInt32(4, -error, true);
    view.setUint32(8, asked.getUint32(8, true), true);
    view.setUint32(12, asked.getUint32(12, true), true);
    return end === buffer.length ? buffer : buffer.subarray(0, end);
  }

  function refuse(message: Message, place: number, code: ErrnoName): void {
    store.reply(place, writeHeader(scratch, message, outHeaderSize, errno[code]));
  }

  function fail(operation: Operation, message: Message, request: PendingRequest, cause: unknown): void {
    pending.delete(request.unique);
    if (!(cause instanceof Errno)) onFault?.(operation.name, cause);
    refuse(message, request.place, cause instanceof Errno ? cause.code : 'EIO');
  }

  function succeed(operation: Operation, message: Message, request: PendingRequest, result: unknown): void {
    pending.delete(request.unique);
    if (operation.name === 'read') {
      const { buffer, length } = result as ReadReply;
      const view = new DataView(buffer.buffer, buffer.byteOffset, outHeaderSize);
      store.reply(request.place, writeHeader({ buffer, view }, message, outHeaderSize + length, 0));
      return;
    }
    const out = hasOut(result) ? result.out : scratch;
    const end = hasOut(result) ? result.end : operation.put(scratch, outHeaderSize, result as never);
    store.reply(request.place, writeHeader(out, message, end, 0));
  }

  function addPending(place: number, message: Message, inherited: InheritedRequest | undefined): PendingRequest {
    const request = new PendingRequest(place, message, inherited !== undefined);
    if (inherited?.isInterrupted === true) request.interrupt();
    pending.set(request.unique, request);
    return request;
  }

  function run(operation: Operation, message: Message, request: PendingRequest): void {
    try {
      const result = operation.run(operations, message, request);
      if (result instanceof Promise)
        result.then(
          (value: unknown) => succeed(operation, message, request, value),
          (cause: unknown) => fail(operation, message, request, cause),
        );
      else if (result === undefined && !isImplemented(operations, operation))
        fail(operation, message, request, new Errno('ENOSYS'));
      else succeed(operation, message, request, result);
    } catch (cause) {
      fail(operation, message, request, cause);
    }
  }

  function init(place: number, message: Message): void {
    const offer = readInitRequest(message);
    if (!isSupported(offer)) {
      refuse(message, place, 'EPROTO');
      return;
    }
    const agreement = negotiate(offer, initOptions);
    store.reply(
      place,
      writeHeader(scratch, message, putInitReply(scratch, outHeaderSize, offer, agreement, initOptions), 0),
    );
    if (offer.major === 7) onInit?.(agreement);
  }

  function batchForget(place: number, message: Message): void {
    requireBytes(message, 8);
    const count = u32(message, 0);
    requireBytes(message, 8 + count * 16);
    store.finished(place);
    for (let at = 8, i = 0; i < count; i++, at += 16) operations.forget?.(u64(message, at), u64(message, at + 8));
  }

  /** What is not answered, or not by the file system. */
  const builtIn: Partial<Record<number, (place: number, message: Message) => void>> = {
    [opcode.init]: init,
    [opcode.forget]: (place, message) => {
      requireBytes(message, 8);
      const [node, lookups] = [header.node(message), u64(message, 0)];
      store.finished(place);
      operations.forget?.(node, lookups);
    },
    [opcode.batchForget]: batchForget,
    // The kernel sends it only for what it has sent before; what is not here has been answered meanwhile.
    [opcode.interrupt]: (place, message) => {
      requireBytes(message, 8);
      const waiting = pending.get(key(message.view, 40));
      waiting?.interrupt();
      if (waiting !== undefined) store.interrupted?.(waiting.place);
      store.finished(place);
    },
    // Told for block devices only; a device that ends is what tells of an unmount.
    [opcode.destroy]: (place, message) => {
      store.reply(place, writeHeader(scratch, message, outHeaderSize, 0));
    },
    [opcode.notifyReply]: (place) => store.finished(place),
  };

  function take(place: number, message: Message, inherited?: InheritedRequest): void {
    const code = header.opcode(message);
    const special = builtIn[code];
    const operation = operationTable[code];
    try {
      if (special !== undefined) special(place, message);
      else if (operation !== undefined) run(operation, message, addPending(place, message, inherited));
      else refuse(message, place, 'ENOSYS');
    } catch (cause) {
      onFault?.(`request ${code}`, cause);
      store.finished(place);
    }
  }

  return {
    handle: take,
    defer: (place, message, inherited) => {
      const operation = operationTable[header.opcode(message)];
      if (operation === undefined) return () => take(place, message);
      const request = addPending(place, message, inherited);
      return () => run(operation, message, request);
    },
    fail: (place, message, why) => {
      const operation = operationTable[header.opcode(message)];
      if (operation === undefined) return take(place, message);
      fail(operation, message, new PendingRequest(place, message, true), why);
    },
    end: () => {
      const all = [...pending.values()];
      for (const request of all) request.interrupt();
      return all.map(({ place }) => place);
    },
    get pending() {
      return pending.size;
    },
  };
}

/** Listings come with the memory that they were written into. */
const hasOut = (result: unknown): result is { readonly out: ReplyBuffer; readonly end: number } =>
  typeof result === 'object' && result !== null && 'out' in result;

const isImplemented = (operations: Partial<Operations>, { name }: Operation): boolean => {
  const called = name === 'rename2' ? 'rename' : name === 'readdirplus' ? 'readdir' : name;
  return operations[called as keyof Operations] !== undefined;
};

/** The same request sent twice has the same key. */
const key = (view: DataView, at: number): number =>
  (view.getUint32(at + 4, true) & ~resentBit) * 0x1_0000_0000 + view.getUint32(at, true);

/** A class: to define what gives the signal for each request anew takes longer than all the rest of it. */
class PendingRequest implements Request {
  readonly uid: number;
  readonly gid: number;
  readonly pid: number;
  readonly place: number;
  readonly unique: number;
  readonly resent: boolean;
  private controller: AbortController | undefined;
  private isInterrupted = false;

  constructor(place: number, message: Message, isInherited: boolean) {
    const { view } = message;
    this.uid = header.uid(message);
    this.gid = header.gid(message);
    this.pid = header.pid(message);
    this.place = place;
    this.unique = key(view, 8);
    this.resent = isInherited || (view.getUint32(12, true) & resentBit) !== 0;
  }

  get signal(): AbortSignal {
    if (this.isInterrupted) return interruptedController.signal;
    this.controller ??= new AbortController();
    return this.controller.signal;
  }

  interrupt(): void {
    this.isInterrupted = true;
    this.controller?.abort(new Errno('EINTR'));
  }
}
