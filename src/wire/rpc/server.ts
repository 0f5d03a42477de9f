import { createServer, type Server, type Socket } from 'node:net';
import type { TlsOptions } from 'node:tls';
import { type Clock, systemClock } from '#base/clock.ts';
import { XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import { authTooWeak, createCallReader, startTlsReply } from './call-reader.ts';
import { type AdmittedConnection, type ConnectionLimit, createConnectionLimit } from './connection-limit.ts';
import { type DispatchContext, dispatch, programsByNumber } from './dispatch.ts';
import { type Identity, messageReply } from './message.ts';
import { createPartialCalls, type PartialCallLimits, type PartialCalls } from './partial-calls.ts';
import { createReceiver, type Input } from './receiver.ts';
import { createReplayCache, type ReplyWriter } from './replay-cache.ts';
import { createSender, type Sender } from './sender.ts';
import { readFromDataEvents, readIntoReceiver } from './socket-reading.ts';
import { commonNameOf, createTlsUpgrade, type TlsUpgrade } from './tls-upgrade.ts';

/** Who calls, as far as that is known: an address, and who they say they are. */
export interface Caller {
  readonly address: string;
  readonly port: number;
  /** Undefined: they did not say. */
  readonly identity: Identity | undefined;
  readonly isEncrypted: boolean;
  /** The common name of the certificate that it showed, and that was found good; undefined: it showed none, or one with no common name or several. */
  readonly certificate?: string | undefined;
}

/** Lays out a result. What it gives is sent behind it, uncopied. */
export type Reply = (writer: XdrWriter) => Uint8Array | undefined;

export interface ServedProcedure {
  readonly name: string;
  /** Doing it twice is not the same as once: a call that comes again gets the first answer. 'frequent': kept apart from others' answers. */
  readonly nonIdempotent?: boolean | 'frequent';
  /** Arguments must be read before it returns; the work may take longer. XdrError: they cannot be read. */
  handle(reader: XdrReader, caller: Caller): Reply | Promise<Reply>;
}

export interface ServedProgram {
  readonly number: number;
  readonly version: number;
  readonly procedures: ReadonlyMap<number, ServedProcedure>;
}

export interface RpcServerOptions {
  /** Recognise a resent call only from the port it first came from, as Linux does. Default: from any port of its address. */
  readonly replaysByPort?: boolean | undefined;
  readonly programs: readonly ServedProgram[];
  /** Undefined: nobody is refused by address. */
  readonly mayConnect?: (address: string, socket: Socket) => boolean;
  /** Refused is told that its way of calling is too weak. NULL, by which a client tries what is there, is always answered. */
  readonly isAllowed?: (caller: Caller) => boolean;
  /** RFC 9289: whoever asks for it is spoken to in private. */
  readonly tls?: TlsOptions | undefined;
  /** The longest call that is taken. */
  readonly maxRecord?: number;
  /** Whoever connects when there are so many takes the place of one that has been quiet. */
  readonly maxConnections?: number;
  /** For calls of which only a part has come, of all connections together. */
  readonly partialCalls?: Partial<PartialCallLimits>;
  readonly clock?: Clock;
  /** Data that a reply gave are sent, and their memory may be used again. Not told of those that nobody took. */
  readonly onSent?: (data: Uint8Array) => void;
  readonly onError?: (what: string, cause: unknown) => void;
}

/** Calls of one connection that are worked on at once, and their bytes; then it is not read from. */
const maxInFlight = 128;
const maxInFlightBytes = 4 * 1024 * 1024;
/** Bytes a client has not taken yet; then it is not read from either. */
const maxQueued = 4 * 1024 * 1024;
/** The same for all connections together: then those that hold something wait. */
const maxHeld = 256 * 1024 * 1024;
/** Who takes nothing of what is waiting for it for so long is gone. */
const stuckMs = 60_000;

/** A call must be whole in this time, which is long for the slowest of lines. */
const wholeWithinMs = 60_000;
/** What all connections may hold of calls that are not: as many as a hundred clients that write 1 MiB at once. */
const maxHalfBytes = 128 * 1024 * 1024;

/** What the connections of one server share. */
interface ServerState extends DispatchContext {
  readonly options: RpcServerOptions;
  readonly tlsUpgrade: TlsUpgrade | undefined;
  readonly connectionLimit: ConnectionLimit;
  readonly partialCalls: PartialCalls;
  heldBytes: number;
}

export function createRpcServer(options: RpcServerOptions): Server {
  const { mayConnect = () => true, maxConnections = 1024, onError = () => undefined, clock = systemClock() } = options;
  const shared: ServerState = {
    options,
    onError,
    programs: programsByNumber(options.programs),
    replays: createReplayCache(clock),
    heldBytes: 0,
    frequentReplays: createReplayCache(clock),
    replaysByPort: options.replaysByPort ?? false,
    isAllowed: options.isAllowed ?? (() => true),
    tlsUpgrade: options.tls && createTlsUpgrade(options.tls),
    connectionLimit: createConnectionLimit(maxConnections),
    partialCalls: createPartialCalls(clock, { bytes: maxHalfBytes, ms: wholeWithinMs, ...options.partialCalls }),
  };
  const how = {
    noDelay: true,
    keepAlive: true,
    keepAliveInitialDelay: 30_000,
    pauseOnConnect: true,
    allowHalfOpen: true,
  };
  return createServer(how, (socket) => {
    if (!mayConnect(normalizeAddress(socket.remoteAddress), socket)) socket.destroy();
    else serve(socket, shared);
  });
}

/** IPv4 in IPv6, as a socket for both gives it, is IPv4. */
const normalizeAddress = (address: string | undefined): string => (address ?? '').replace(/^::ffff:/, '');

function serve(socket: Socket, shared: ServerState): void {
  const from = { address: normalizeAddress(socket.remoteAddress), port: socket.remotePort ?? 0 };
  const { tlsUpgrade, connectionLimit } = shared;
  const member = connectionLimit.admit(socket, from.address);
  if (tlsUpgrade === undefined) {
    serveCalls((input) => readIntoReceiver(socket, input), { ...from, member, isEncrypted: false }, shared, undefined);
    return;
  }
  const open = (input: Input): Socket => readFromDataEvents(socket, input);
  serveCalls(open, { ...from, member, isEncrypted: false }, shared, () => {
    socket.on('error', () => socket.destroy());
    tlsUpgrade(socket, (secured) => {
      const openSecured = (input: Input): Socket => readFromDataEvents(secured, input);
      const certificate = commonNameOf(secured);
      serveCalls(openSecured, { ...from, member, isEncrypted: true, certificate }, shared, undefined);
    });
  });
}

/** Answers the calls of one connection. `onTls`: it shall be made private, and is not heard here any more. */
function serveCalls(
  open: (input: Input) => Socket,
  { member, ...from }: Omit<Caller, 'identity'> & { readonly member: AdmittedConnection },
  shared: ServerState,
  onTls: (() => void) | undefined,
): void {
  const readCall = createCallReader(from);
  const reader = new XdrReader();
  /** Calls that came when enough was under way already, of what was received at once. */
  const waiting: Buffer[] = [];
  let inFlight = 0;
  let inFlightBytes = 0;
  let held = 0;
  let isWorking = false;
  let isUpgrading = false;
  let hasEnded = false;

  const drop = (what: string, cause: unknown): void => {
    shared.onError(what, cause);
    socket.destroy();
  };
  const receiver = createReceiver({
    maxRecord: shared.options.maxRecord ?? 2 * 1024 * 1024,
    isMemoryLow: () => shared.partialCalls.isMemoryLow,
    onRecord: (buffer, view, at, end) => {
      if (isUpgrading) return;
      if (waiting.length > 0 || isBusy()) waiting.push(Buffer.from(buffer.subarray(at, end)));
      else handleCall(buffer, view, at, end);
    },
  });
  /** A client that breaks the protocol loses its connection; nothing it sends may reach the top of the stack. */
  const guard = (step: () => void): void => {
    shared.connectionLimit.touch(member);
    try {
      step();
    } catch (cause) {
      drop('a client broke the protocol', cause);
    }
    // All that was answered at once goes out together.
    sender.flush();
    tracked.update();
    if (waiting.length > 0 || held > 0) processWaiting();
  };
  const socket = open({
    buffer: receiver.buffer,
    received: (bytes) => guard(() => receiver.received(bytes)),
    push: (chunk) => guard(() => receiver.push(chunk)),
  });
  const onError = (cause: unknown): void => drop('a reply could not be sent', cause);
  const isPlainTcp = shared.tlsUpgrade === undefined;
  const sender = createSender(socket, { onError, onSent: shared.options.onSent, isPlainTcp });
  const tracked = shared.partialCalls.admit({
    receiver,
    member,
    address: from.address,
    isPaused: () => socket.isPaused(),
    drop: (why) => drop(why, undefined),
  });

  function isBusy(): boolean {
    const own = socket.destroyed ? 0 : inFlightBytes + (isUpgrading ? 0 : sender.queued);
    shared.heldBytes += own - held;
    held = own;
    const isTooMuch = inFlight >= maxInFlight || inFlightBytes > maxInFlightBytes || sender.queued > maxQueued;
    return isTooMuch || (own > 0 && shared.heldBytes > maxHeld);
  }

  function handleCall(buffer: Buffer, view: DataView, at: number, end: number): void {
    const call = readCall(reader.reset(buffer, view, at, end));
    const { xid } = call;
    if (call.isTlsProbe) {
      send(sender, xid, onTls === undefined ? authTooWeak : startTlsReply);
      if (onTls !== undefined) upgradeToTls(onTls);
      return;
    }
    const done = dispatch(call, reader, shared);
    if (!(done instanceof Promise)) {
      if (done !== undefined) send(sender, xid, done);
      return;
    }
    const length = end - at;
    inFlight++;
    inFlightBytes += length;
    done
      .then((reply) => {
        if (reply === undefined || socket.destroyed || isUpgrading) return;
        send(sender, xid, reply);
        sender.flushSoon();
      })
      .finally(() => {
        inFlight--;
        inFlightBytes -= length;
        processWaiting();
      })
      .catch((cause: unknown) => drop('a call could not be answered', cause));
  }

  /**
   * The last answer goes out in the clear; everything after it is private. Whatever else came in the clear is forgotten,
   * as it may be another's, and with it the memory it is in: nothing that lives as long as the socket may point here.
   */
  function upgradeToTls(next: () => void): void {
    isUpgrading = true;
    waiting.length = 0;
    tracked[Symbol.dispose]();
    isBusy();
    setImmediate(() => {
      socket.removeAllListeners('data').removeAllListeners('timeout').setTimeout(0);
      socket.off('drain', processWaiting).off('end', onEnd).off('close', onClose).off('error', destroy);
      next();
    });
  }

  /** Does what waits, as long as there is room, and reads on when nothing waits any more. */
  function processWaiting(): void {
    if (isWorking) return;
    isWorking = true;
    try {
      while (waiting.length > 0 && !socket.destroyed && !isBusy()) {
        const next = waiting.shift() as Buffer;
        handleCall(next, new DataView(next.buffer, next.byteOffset, next.length), 0, next.length);
        // Here, not behind the loop: what the kernel takes at once calls nobody back, and the rest would wait for ever.
        if (waiting.length === 0 || isBusy()) sender.flush();
      }
    } catch (cause) {
      drop('a client broke the protocol', cause);
    }
    isWorking = false;
    const isFull = waiting.length > 0 || isBusy();
    if (isUpgrading) return;
    if (hasEnded && waiting.length === 0 && inFlight === 0) {
      sender.flush();
      socket.end();
    }
    if (isFull !== socket.isPaused()) isFull ? socket.pause() : socket.resume();
  }

  /** A client that says no more sees the connection end when all it asked for is done: so it knows that nothing comes late. */
  const onEnd = (): void => {
    hasEnded = true;
    processWaiting();
  };
  const onClose = (): void => {
    tracked[Symbol.dispose]();
    waiting.length = 0;
    shared.heldBytes -= held;
    held = 0;
  };
  const destroy = (): void => void socket.destroy();
  socket.on('drain', processWaiting).on('end', onEnd).on('close', onClose).on('error', destroy);
  socket.setTimeout(stuckMs, () => {
    if (sender.queued > 0) drop('a client took nothing for too long', undefined);
  });
}

interface PendingReply {
  xid: number;
  layout: ReplyWriter;
}

/** Used for every answer in turn: it is laid out before the next. */
const pendingReply: PendingReply = { xid: 0, layout: () => undefined };

const encodeReply = (writer: XdrWriter, { xid, layout }: PendingReply): Uint8Array | undefined => {
  writer.u32(xid).u32(messageReply);
  return layout(writer);
};

function send(sender: Sender, xid: number, layout: ReplyWriter): void {
  pendingReply.xid = xid;
  pendingReply.layout = layout;
  sender.addRecord(encodeReply, pendingReply);
}
