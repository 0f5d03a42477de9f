import { createServer, type Server, type Socket } from 'node:net';
import type { TlsOptions } from 'node:tls';
import { type Clock, systemClock } from '#base/clock.ts';
import { XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import { authTooWeak, createCallReader, startTlsReply } from './call-reader.ts';
import { type AdmittedConnection, type ConnectionLimit, createConnectionLimit } from './connection-limit.ts';
import { type DispatchContext, dispatch, programsByNumber } from './dispatch.ts';
import { type Identity, replyType } from './message.ts';
import { createPartialCalls, type PartialCallLimits, type PartialCalls } from './partial-calls.ts';
import { createReceiver, type Input } from './receiver.ts';
import { createReplayCache, type ReplyWriter } from './replay-cache.ts';
import { createSender, type Sender } from './sender.ts';
import { readFromDataEvents, readIntoReceiver } from './socket-reading.ts';
import { commonNameOf, createTlsUpgrade, type TlsUpgrade } from './tls-upgrade.ts';

/** The address of a caller, and the user that it claims. */
export interface Caller {
  readonly address: string;
  readonly port: number;
  /** Undefined: AUTH_NONE. */
  readonly identity: Identity | undefined;
  readonly isEncrypted: boolean;
  /**
   * The common name of the caller's verified certificate. Undefined: the caller has no certificate, or its certificate does not
   * have exactly one common name.
   */
  readonly certificate?: string | undefined;
}

/** Encodes a result. The returned bytes are sent after it without a copy. */
export type Reply = (writer: XdrWriter) => Uint8Array | undefined;

export interface ServedProcedure {
  readonly name: string;
  /**
   * A second execution would differ from the first, so a resent call gets the cached reply. 'frequent': uses a cache of its own,
   * so that other replies stay.
   */
  readonly nonIdempotent?: boolean | 'frequent';
  /** Must decode the arguments before it returns; the work may take longer. XdrError: the arguments cannot be decoded. */
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
  /** Decides by address whether a client may connect. Default: all clients may. */
  readonly mayConnect?: (address: string, socket: Socket) => boolean;
  /** Callers for which it returns false get AUTH_TOOWEAK. NULL, with which clients probe the server, is always answered. */
  readonly isAllowed?: (caller: Caller) => boolean;
  /** Settings for RFC 9289. TLS is started if the client requests it. */
  readonly tls?: TlsOptions | undefined;
  /** The longest call that the server accepts. */
  readonly maxRecord?: number;
  /** When this many connections are open, a new one evicts an idle one. */
  readonly maxConnections?: number;
  /** Limits for incomplete calls, for all connections together. */
  readonly partialCalls?: Partial<PartialCallLimits>;
  readonly clock?: Clock;
  /** The data of a reply were sent, and their memory is free again. Not called for data of replies that were never sent. */
  readonly onSent?: (data: Uint8Array) => void;
  readonly onError?: (what: string, cause: unknown) => void;
}

/** Limits on the calls in flight of one connection, and on their bytes. Beyond them, the server stops reading from the connection. */
const maxInFlight = 128;
const maxInFlightBytes = 4 * 1024 * 1024;
/** Reply bytes that a client has not read yet. Beyond this, the server stops reading from the connection, too. */
const maxUnsentReplyBytes = 4 * 1024 * 1024;
/** The limit on the bytes of calls and replies of all connections. Beyond it, the server stops reading from connections that hold some. */
const maxHeldBytes = 256 * 1024 * 1024;
/** The server drops a client that reads nothing of its replies for this long. */
const clientReadTimeoutMs = 60_000;

/** The timeout for receiving one whole call: enough for very slow links. */
const callReceiveTimeoutMs = 60_000;
/** The memory for incomplete calls of all connections: as much as a hundred clients that write 1 MiB at once. */
const maxPartialCallBytes = 128 * 1024 * 1024;

/** State shared by all connections of one server. */
interface ServerState extends DispatchContext {
  readonly options: RpcServerOptions;
  readonly tlsUpgrade: TlsUpgrade | undefined;
  readonly connectionLimit: ConnectionLimit;
  readonly partialCalls: PartialCalls;
  heldBytes: number;
}

export function createRpcServer(options: RpcServerOptions): Server {
  const { mayConnect = () => true, maxConnections = 1024, onError = () => undefined, clock = systemClock() } = options;
  const state: ServerState = {
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
    partialCalls: createPartialCalls(clock, {
      bytes: maxPartialCallBytes,
      timeoutMs: callReceiveTimeoutMs,
      ...options.partialCalls,
    }),
  };
  const socketOptions = {
    noDelay: true,
    keepAlive: true,
    keepAliveInitialDelay: 30_000,
    pauseOnConnect: true,
    allowHalfOpen: true,
  };
  return createServer(socketOptions, (socket) => {
    if (!mayConnect(normalizeAddress(socket.remoteAddress), socket)) socket.destroy();
    else serve(socket, state);
  });
}

/** Turns an IPv4-mapped IPv6 address, as a dual-stack socket reports it, into IPv4. */
const normalizeAddress = (address: string | undefined): string => (address ?? '').replace(/^::ffff:/, '');

function serve(socket: Socket, state: ServerState): void {
  const client = { address: normalizeAddress(socket.remoteAddress), port: socket.remotePort ?? 0 };
  const { tlsUpgrade, connectionLimit } = state;
  const connection = connectionLimit.add(socket, client.address);
  if (tlsUpgrade === undefined) {
    serveCalls(
      (input) => readIntoReceiver(socket, input),
      { ...client, member: connection, isEncrypted: false },
      state,
      undefined,
    );
    return;
  }
  const open = (input: Input): Socket => readFromDataEvents(socket, input);
  serveCalls(open, { ...client, member: connection, isEncrypted: false }, state, () => {
    socket.on('error', () => socket.destroy());
    tlsUpgrade(socket, (secured) => {
      const openSecured = (input: Input): Socket => readFromDataEvents(secured, input);
      const certificate = commonNameOf(secured);
      serveCalls(openSecured, { ...client, member: connection, isEncrypted: true, certificate }, state, undefined);
    });
  });
}

/** Serves the calls of one connection. `onTls`: starts TLS; this function then stops reading from the socket. */
function serveCalls(
  open: (input: Input) => Socket,
  { member, ...from }: Omit<Caller, 'identity'> & { readonly member: AdmittedConnection },
  state: ServerState,
  onTls: (() => void) | undefined,
): void {
  const readCall = createCallReader(from);
  const reader = new XdrReader();
  /** Calls of the last read that wait because too many are in flight. */
  const waiting: Buffer[] = [];
  let inFlight = 0;
  let inFlightBytes = 0;
  let heldBytes = 0;
  let isProcessing = false;
  let isUpgrading = false;
  let hasEnded = false;

  const drop = (what: string, cause: unknown): void => {
    state.onError(what, cause);
    socket.destroy();
  };
  const receiver = createReceiver({
    maxRecord: state.options.maxRecord ?? 2 * 1024 * 1024,
    isMemoryLow: () => state.partialCalls.isMemoryLow,
    onRecord: (buffer, view, at, end) => {
      if (isUpgrading) return;
      if (waiting.length > 0 || isBusy()) waiting.push(Buffer.from(buffer.subarray(at, end)));
      else handleCall(buffer, view, at, end);
    },
  });
  /** Drops the connection if the client violates the protocol. Nothing that a client sends may become an uncaught exception. */
  const runGuarded = (step: () => void): void => {
    state.connectionLimit.recordUse(member);
    try {
      step();
    } catch (cause) {
      drop('a client violated the protocol', cause);
    }
    // Send all replies of this turn together.
    sender.flush();
    tracked.update();
    if (waiting.length > 0 || heldBytes > 0) processWaiting();
  };
  const socket = open({
    buffer: receiver.buffer,
    received: (bytes) => runGuarded(() => receiver.received(bytes)),
    push: (chunk) => runGuarded(() => receiver.push(chunk)),
  });
  const onError = (cause: unknown): void => drop('sending a reply failed', cause);
  const isPlainTcp = state.tlsUpgrade === undefined;
  const sender = createSender(socket, { onError, onSent: state.options.onSent, isPlainTcp });
  const tracked = state.partialCalls.add({
    receiver,
    connection: member,
    address: from.address,
    isPaused: () => socket.isPaused(),
    drop: (why) => drop(why, undefined),
  });

  function isBusy(): boolean {
    const connectionBytes = socket.destroyed ? 0 : inFlightBytes + (isUpgrading ? 0 : sender.queued);
    state.heldBytes += connectionBytes - heldBytes;
    heldBytes = connectionBytes;
    const isTooMuch =
      inFlight >= maxInFlight || inFlightBytes > maxInFlightBytes || sender.queued > maxUnsentReplyBytes;
    return isTooMuch || (connectionBytes > 0 && state.heldBytes > maxHeldBytes);
  }

  function handleCall(buffer: Buffer, view: DataView, at: number, end: number): void {
    const call = readCall(reader.reset(buffer, view, at, end));
    const { xid } = call;
    if (call.isTlsProbe) {
      send(sender, xid, onTls === undefined ? authTooWeak : startTlsReply);
      if (onTls !== undefined) upgradeToTls(onTls);
      return;
    }
    const done = dispatch(call, reader, state);
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
      .catch((cause: unknown) => drop('executing a call failed', cause));
  }

  /**
   * The reply to the TLS probe is the last one in plain text. Discard everything else that was received in plain text, since an
   * attacker may have injected it, and free its memory: nothing that lives as long as the socket may refer to it.
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

  /** Executes waiting calls while there is room, and resumes reading when none are left. */
  function processWaiting(): void {
    if (isProcessing) return;
    isProcessing = true;
    try {
      while (waiting.length > 0 && !socket.destroyed && !isBusy()) {
        const next = waiting.shift() as Buffer;
        handleCall(next, new DataView(next.buffer, next.byteOffset, next.length), 0, next.length);
        // Flush here, not after the loop: if the kernel takes everything at once there is no 'drain' event, and the rest would
        // wait for ever.
        if (waiting.length === 0 || isBusy()) sender.flush();
      }
    } catch (cause) {
      drop('a client violated the protocol', cause);
    }
    isProcessing = false;
    const isFull = waiting.length > 0 || isBusy();
    if (isUpgrading) return;
    if (hasEnded && waiting.length === 0 && inFlight === 0) {
      sender.flush();
      socket.end();
    }
    if (isFull !== socket.isPaused()) isFull ? socket.pause() : socket.resume();
  }

  /**
   * When a client has closed its side, the server ends the connection once all its calls are done. So the client knows that
   * none of its calls runs later.
   */
  const onEnd = (): void => {
    hasEnded = true;
    processWaiting();
  };
  const onClose = (): void => {
    tracked[Symbol.dispose]();
    waiting.length = 0;
    state.heldBytes -= heldBytes;
    heldBytes = 0;
  };
  const destroy = (): void => void socket.destroy();
  socket.on('drain', processWaiting).on('end', onEnd).on('close', onClose).on('error', destroy);
  socket.setTimeout(clientReadTimeoutMs, () => {
    if (sender.queued > 0) drop('a client read no replies for too long', undefined);
  });
}

interface PendingReply {
  xid: number;
  writeReply: ReplyWriter;
}

/** Reused for every reply, since each is encoded before the next. */
const pendingReply: PendingReply = { xid: 0, writeReply: () => undefined };

const encodeReply = (writer: XdrWriter, { xid, writeReply: layout }: PendingReply): Uint8Array | undefined => {
  writer.u32(xid).u32(replyType);
  return layout(writer);
};

function send(sender: Sender, xid: number, layout: ReplyWriter): void {
  pendingReply.xid = xid;
  pendingReply.writeReply = layout;
  sender.addRecord(encodeReply, pendingReply);
}
