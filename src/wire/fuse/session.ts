import { opcode, outHeaderSize, resentBit } from './abi.ts';
import { createReplyBuffer, type ReplyBuffer } from './encode.ts';
import { Errno, type ErrnoName, errno } from './errno.ts';
import { type InitOptions, type InitResult, isSupported, negotiate, putInitReply, readInitRequest } from './init.ts';
import { header, type Message, requireBytes, u32, u64 } from './message.ts';
import { type Operation, operationTable } from './operation-table.ts';
import type { Operations, ReadReply, Request } from './operations.ts';

/** Receives the replies, and owns the memory of the requests. */
export interface RequestStore {
  /** The complete reply to the request in that slot. Write it before returning, since its memory is reused. */
  reply(slot: number, bytes: Buffer): void;
  /**
   * The request in that slot has no reply. Its memory stays unchanged until the next request is read. For FORGET it is called
   * before the count is reduced: a crash in between leaves a count that is too high, which costs memory, never one that is too
   * low.
   */
  finished(slot: number): void;
  /** The process that waits for the request in that slot was interrupted. The kernel says so once, to one server process. */
  interrupted?(slot: number): void;
}

export interface SessionOptions {
  readonly operations: Partial<Operations>;
  readonly initOptions: InitOptions;
  readonly store: RequestStore;
  /** INIT is done, and the kernel sends requests from now on. */
  readonly onInit?: (agreement: InitResult) => void;
  /** An operation threw something other than `Errno`. The session replies with EIO. */
  readonly onFault?: (operation: string, cause: unknown) => void;
}

/** A request that a previous server process received and may have answered. */
export interface InheritedRequest {
  /** The kernel has sent the previous process an INTERRUPT for this request. */
  readonly isInterrupted: boolean;
}

export interface Session {
  /** Executes the request in that slot. Never throws. */
  handle(slot: number, message: Message, inherited?: InheritedRequest): void;
  /** Executes the request when the returned function is called. The request counts as pending from now on, so it can be interrupted. */
  defer(slot: number, message: Message, inherited: InheritedRequest): () => void;
  /**
   * Replies with an error (EIO, or the code of an `Errno`) without executing the request, if it is of a kind that has a reply.
   */
  fail(slot: number, message: Message, why: Error): void;
  /** The mount has ended: interrupts all pending requests and returns their slots. */
  end(): readonly number[];
  /** The number of requests without a reply. */
  readonly pending: number;
}

const interruptedController = new AbortController();
interruptedController.abort(new Errno('EINTR'));

/** All sessions encode their replies here, one at a time. Longer replies (directories, data) have their own memory. */
const scratch = createReplyBuffer(64 * 1024);

/** Writes the reply header with the request's unique number, including the resent bit. */
function writeHeader({ buffer, view }: ReplyBuffer, { view: request }: Message, end: number, error: number): Buffer {
  view.setUint32(0, end, true);
  view.setInt32(4, -error, true);
  view.setUint32(8, request.getUint32(8, true), true);
  view.setUint32(12, request.getUint32(12, true), true);
  return end === buffer.length ? buffer : buffer.subarray(0, end);
}

interface InitReply {
  readonly bytes: Buffer;
  readonly agreement: InitResult;
  /** False: the kernel sends INIT again, with a version that this library has. */
  readonly isAgreed: boolean;
}

/** Undefined: the kernel is too old. */
function initReply(message: Message, options: InitOptions): InitReply | undefined {
  const offer = readInitRequest(message);
  if (!isSupported(offer)) return undefined;
  const agreement = negotiate(offer, options);
  const end = putInitReply(scratch, outHeaderSize, offer, agreement, options);
  return { bytes: writeHeader(scratch, message, end, 0), agreement, isAgreed: offer.major === 7 };
}

function replyWithError(store: RequestStore, message: Message, slot: number, code: ErrnoName): void {
  store.reply(slot, writeHeader(scratch, message, outHeaderSize, errno[code]));
}

type BuiltInHandler = (slot: number, message: Message) => void;

/** Requests that have no reply, or that the session answers itself. */
function createBuiltIn(
  { operations, initOptions, store, onInit }: SessionOptions,
  pending: ReadonlyMap<number, PendingRequest>,
): Partial<Record<number, BuiltInHandler>> {
  function init(slot: number, message: Message): void {
    const answer = initReply(message, initOptions);
    if (answer === undefined) {
      replyWithError(store, message, slot, 'EPROTO');
      return;
    }
    store.reply(slot, answer.bytes);
    if (answer.isAgreed) onInit?.(answer.agreement);
  }

  function batchForget(slot: number, message: Message): void {
    requireBytes(message, 8);
    const count = u32(message, 0);
    requireBytes(message, 8 + count * 16);
    store.finished(slot);
    for (let at = 8, i = 0; i < count; i++, at += 16) operations.forget?.(u64(message, at), u64(message, at + 8));
  }

  return {
    [opcode.init]: init,
    [opcode.forget]: (slot, message) => {
      requireBytes(message, 8);
      const [node, lookups] = [header.node(message), u64(message, 0)];
      store.finished(slot);
      operations.forget?.(node, lookups);
    },
    [opcode.batchForget]: batchForget,
    // The kernel sends INTERRUPT only for requests that it sent before. If the request is not pending, the session has answered it meanwhile.
    [opcode.interrupt]: (slot, message) => {
      requireBytes(message, 8);
      const waiting = pending.get(requestKey(message.view, 40));
      waiting?.interrupt();
      if (waiting !== undefined) store.interrupted?.(waiting.slot);
      store.finished(slot);
    },
    // The kernel sends DESTROY for block devices only. After an unmount, reading the device fails with ENODEV.
    [opcode.destroy]: (slot, message) => {
      store.reply(slot, writeHeader(scratch, message, outHeaderSize, 0));
    },
    [opcode.notifyReply]: (slot) => store.finished(slot),
  };
}

export function createSession(options: SessionOptions): Session {
  const { operations, store, onFault } = options;
  const pending = new Map<number, PendingRequest>();

  function fail(operation: Operation, message: Message, request: PendingRequest, cause: unknown): void {
    pending.delete(request.unique);
    if (!(cause instanceof Errno)) onFault?.(operation.name, cause);
    replyWithError(store, message, request.slot, cause instanceof Errno ? cause.code : 'EIO');
  }

  function succeed(operation: Operation, message: Message, request: PendingRequest, result: unknown): void {
    pending.delete(request.unique);
    if (operation.name === 'read') {
      const { buffer, length } = result as ReadReply;
      const view = new DataView(buffer.buffer, buffer.byteOffset, outHeaderSize);
      store.reply(request.slot, writeHeader({ buffer, view }, message, outHeaderSize + length, 0));
      return;
    }
    const out = hasOut(result) ? result.out : scratch;
    const end = hasOut(result) ? result.end : operation.put(scratch, outHeaderSize, result as never);
    store.reply(request.slot, writeHeader(out, message, end, 0));
  }

  function addPending(slot: number, message: Message, inherited: InheritedRequest | undefined): PendingRequest {
    const request = new PendingRequest(slot, message, inherited !== undefined);
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

  const builtIn = createBuiltIn(options, pending);

  function handle(slot: number, message: Message, inherited?: InheritedRequest): void {
    const code = header.opcode(message);
    const builtInHandler = builtIn[code];
    const operation = operationTable[code];
    try {
      if (builtInHandler !== undefined) builtInHandler(slot, message);
      else if (operation !== undefined) run(operation, message, addPending(slot, message, inherited));
      else replyWithError(store, message, slot, 'ENOSYS');
    } catch (cause) {
      onFault?.(`request ${code}`, cause);
      store.finished(slot);
    }
  }

  return {
    handle: handle,
    defer: (slot, message, inherited) => {
      const operation = operationTable[header.opcode(message)];
      if (operation === undefined) return () => handle(slot, message);
      const request = addPending(slot, message, inherited);
      return () => run(operation, message, request);
    },
    fail: (slot, message, why) => {
      const operation = operationTable[header.opcode(message)];
      if (operation === undefined) return handle(slot, message);
      fail(operation, message, new PendingRequest(slot, message, true), why);
    },
    end: () => {
      const all = [...pending.values()];
      for (const request of all) request.interrupt();
      return all.map(({ slot }) => slot);
    },
    get pending() {
      return pending.size;
    },
  };
}

/** Directory listings bring their own reply buffer. */
const hasOut = (result: unknown): result is { readonly out: ReplyBuffer; readonly end: number } =>
  typeof result === 'object' && result !== null && 'out' in result;

const isImplemented = (operations: Partial<Operations>, { name }: Operation): boolean => {
  const called = name === 'rename2' ? 'rename' : name === 'readdirplus' ? 'readdir' : name;
  return operations[called as keyof Operations] !== undefined;
};

/** The request's unique number without the resent bit, so a resent request has the same key. */
const requestKey = (view: DataView, at: number): number =>
  (view.getUint32(at + 4, true) & ~resentBit) * 0x1_0000_0000 + view.getUint32(at, true);

/** A class, since defining the `signal` getter for each request would take longer than everything else. */
class PendingRequest implements Request {
  readonly uid: number;
  readonly gid: number;
  readonly pid: number;
  readonly slot: number;
  readonly unique: number;
  readonly resent: boolean;
  private controller: AbortController | undefined;
  private isInterrupted = false;

  constructor(slot: number, message: Message, isInherited: boolean) {
    const { view } = message;
    this.uid = header.uid(message);
    this.gid = header.gid(message);
    this.pid = header.pid(message);
    this.slot = slot;
    this.unique = requestKey(view, 8);
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
