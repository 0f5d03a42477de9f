import { createServer, type Server, type Socket } from 'node:net';
import { TLSSocket, type TlsOptions } from 'node:tls';
import { crc32 } from 'node:zlib';
import { XdrError, XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import { authNone, authSys, authTls, type Identity, maxAuth, maxGroups, messageCall, messageReply } from './message.ts';
import { createReceiver } from './receiver.ts';
import { createReplayCache, type Layout, type ReplayCache } from './replay-cache.ts';
import { createSender, type Sender } from './sender.ts';

/** Who calls, as far as that is known: an address, and who they say they are. */
export interface Caller {
  readonly address: string;
  readonly port: number;
  /** Undefined: they did not say. */
  readonly identity: Identity | undefined;
  readonly isEncrypted: boolean;
}

/** Lays out a result. What it gives is sent behind it, uncopied. */
export type Reply = (writer: XdrWriter) => Uint8Array | undefined;

export interface ServedProcedure {
  readonly name: string;
  /** Doing it twice is not the same as once: a call that comes again gets the first answer. */
  readonly once?: boolean;
  /** Arguments must be read before it returns; the work may take longer. XdrError: they cannot be read. */
  handle(reader: XdrReader, caller: Caller): Reply | Promise<Reply>;
}

export interface ServedProgram {
  readonly number: number;
  readonly version: number;
  readonly procedures: ReadonlyMap<number, ServedProcedure>;
}

export interface RpcServerOptions {
  readonly programs: readonly ServedProgram[];
  /** Undefined: nobody is refused by address. */
  readonly mayConnect?: (address: string) => boolean;
  /** RFC 9289: whoever asks for it is spoken to in private. */
  readonly tls?: TlsOptions | undefined;
  /** The longest call that is taken. */
  readonly maxRecord?: number;
  readonly maxConnections?: number;
  readonly onError?: (what: string, cause: unknown) => void;
}

/** Calls of one connection that are worked on at once; then it is not read from. */
const maxInFlight = 128;
/** Bytes a client has not taken yet; then it is not read from either. */
const maxQueued = 8 * 1024 * 1024;

export function createRpcServer(options: RpcServerOptions): Server {
  const { mayConnect = () => true, maxConnections = 1024 } = options;
  const replays = createReplayCache();
  const server = createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay: 30_000 }, (socket) => {
    if (!mayConnect(plain(socket.remoteAddress))) socket.destroy();
    else serve(socket, options, replays);
  });
  server.maxConnections = maxConnections;
  return server;
}

/** IPv4 in IPv6, as a socket for both gives it, is IPv4. */
const plain = (address: string | undefined): string => (address ?? '').replace(/^::ffff:/, '');

function serve(socket: Socket, options: RpcServerOptions, replays: ReplayCache): void {
  const { maxRecord = 2 * 1024 * 1024, onError = () => undefined } = options;
  const from = { address: plain(socket.remoteAddress), port: socket.remotePort ?? 0 };
  let current: Socket = socket;
  let isEncrypted = false;
  let inFlight = 0;
  let sender: Sender;

  const drop = (what: string, cause: unknown): void => {
    onError(what, cause);
    current.destroy();
  };

  const flow = (): void => {
    const isTooMuch = inFlight >= maxInFlight || sender.queued > maxQueued;
    if (isTooMuch && !current.isPaused()) current.pause();
    else if (!isTooMuch && current.isPaused()) current.resume();
  };

  const receiver = createReceiver({
    maxRecord,
    onRecord: (buffer, view, at, end) => {
      const reader = new XdrReader().reset(buffer, view, at, end);
      const call = readCall(reader, { ...from, isEncrypted });
      if (call.asksForTls) return options.tls === undefined ? answer(call.xid, tooWeak) : secure(call.xid, options.tls);
      inFlight++;
      flow();
      const done = perform(call, reader, options.programs, replays, onError);
      const finish = (reply: Layout | undefined): void => {
        inFlight--;
        if (reply !== undefined && !current.destroyed) answer(call.xid, reply);
        flow();
      };
      if (done instanceof Promise) done.then(finish, (cause: unknown) => drop('a call could not be answered', cause));
      else finish(done);
    },
  });

  const answer = (xid: number, layout: Layout): void => {
    sender.record((writer) => {
      writer.u32(xid).u32(messageReply);
      return layout(writer);
    }, undefined);
  };

  function attach(to: Socket): void {
    current = to;
    sender = createSender(to, (cause) => drop('a reply could not be sent', cause));
    to.on('data', (chunk: Buffer) => {
      try {
        receiver.push(chunk);
      } catch (cause) {
        drop('a client broke the protocol', cause);
      }
    });
    to.on('drain', flow);
    to.on('error', () => to.destroy());
  }

  /** The answer goes out in the clear; everything after it is private. */
  function secure(xid: number, tls: TlsOptions): void {
    answer(xid, startTls);
    setImmediate(() => {
      socket.removeAllListeners('data');
      isEncrypted = true;
      const private_ = new TLSSocket(socket, { ...tls, isServer: true, ALPNProtocols: ['sunrpc'] });
      attach(private_);
    });
  }

  attach(socket);
}

const accepted = (writer: XdrWriter, status: number): XdrWriter => writer.u32(0).u32(authNone).u32(0).u32(status);

const failed =
  (status: number, ...more: readonly number[]): Layout =>
  (writer) => {
    accepted(writer, status);
    for (const word of more) writer.u32(word);
    return undefined;
  };

const denied =
  (...words: readonly number[]): Layout =>
  (writer) => {
    writer.u32(1);
    for (const word of words) writer.u32(word);
    return undefined;
  };

const tooWeak = denied(1, 5);
const startTls: Layout = (writer) => {
  writer.u32(0).u32(authNone).opaque(Buffer.from('STARTTLS')).u32(0);
  return undefined;
};

interface ReceivedCall {
  readonly xid: number;
  readonly rpcVersion: number;
  readonly program: number;
  readonly version: number;
  readonly procedure: number;
  readonly asksForTls: boolean;
  /** Undefined: a kind of credential that is not taken, or a malformed one. */
  readonly caller: Caller | undefined;
}

function readCall(reader: XdrReader, from: Omit<Caller, 'identity'>): ReceivedCall {
  const xid = reader.u32();
  if (reader.u32() !== messageCall) throw new XdrError('a reply came where a call should');
  const [rpcVersion, program, version, procedure] = [reader.u32(), reader.u32(), reader.u32(), reader.u32()];
  const flavor = reader.u32();
  const body = reader.window(maxAuth);
  reader.u32();
  reader.window(maxAuth);
  const asksForTls = flavor === authTls && procedure === 0;
  const about = { xid, rpcVersion, program, version, procedure, asksForTls };
  if (flavor === authNone) return { ...about, caller: { ...from, identity: undefined } };
  const identity = flavor === authSys ? readIdentity(body) : undefined;
  return { ...about, caller: identity && { ...from, identity } };
}

function readIdentity(body: Buffer): Identity | undefined {
  try {
    const view = new DataView(body.buffer, body.byteOffset, body.length);
    const reader = new XdrReader().reset(body, view, 0, body.length);
    reader.u32();
    const machine = reader.string(255);
    const [uid, gid, count] = [reader.u32(), reader.u32(), reader.u32()];
    if (count > maxGroups) return undefined;
    return { machine, uid, gid, groups: Array.from({ length: count }, () => reader.u32()) };
  } catch {
    return undefined;
  }
}

const badCredential = denied(1, 1);

function perform(
  call: ReceivedCall,
  reader: XdrReader,
  programs: readonly ServedProgram[],
  replays: ReplayCache,
  onError: (what: string, cause: unknown) => void,
): Layout | undefined | Promise<Layout | undefined> {
  if (call.rpcVersion !== 2) return denied(0, 2, 2);
  const versions = programs.filter((program) => program.number === call.program);
  if (versions.length === 0) return failed(1);
  const program = versions.find((one) => one.version === call.version);
  const numbers = versions.map(({ version }) => version);
  if (program === undefined) return failed(2, Math.min(...numbers), Math.max(...numbers));
  const procedure = program.procedures.get(call.procedure);
  if (procedure === undefined) return failed(3);
  const { caller } = call;
  if (caller === undefined) return badCredential;
  const work = (): Layout | Promise<Layout> => run(procedure, reader, caller, onError);
  if (procedure.once !== true) return work();
  const key = `${caller.address} ${call.xid} ${call.program} ${call.procedure} ${crc32(reader.buffer.subarray(reader.at, reader.end))}`;
  return replays.once(key, work);
}

function run(
  procedure: ServedProcedure,
  reader: XdrReader,
  caller: Caller,
  onError: (what: string, cause: unknown) => void,
): Layout | Promise<Layout> {
  const success =
    (reply: Reply): Layout =>
    (writer) => {
      accepted(writer, 0);
      return reply(writer);
    };
  const failure = (cause: unknown): Layout => {
    // The arguments could not be read, or something of our own went wrong.
    if (cause instanceof XdrError) return failed(4);
    onError(`${procedure.name} failed`, cause);
    return failed(5);
  };
  try {
    const reply = procedure.handle(reader, caller);
    return reply instanceof Promise ? reply.then(success, failure) : success(reply);
  } catch (cause) {
    return failure(cause);
  }
}
