import {
  constants,
  createServer as createHttp2Server,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2';
import { createServer, type Server, type Socket } from 'node:net';
import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { waitWithGrace } from '#base/wait.ts';
import { withAcceptableAuthority } from './authority-filter.ts';
import {
  decodeFrame,
  encodeFrame,
  encodeStatusMessage,
  type GrpcCall,
  GrpcError,
  type GrpcStatus,
  grpcCodes,
  type Methods,
  parseTimeout,
} from './grpc.ts';

/**
 * A gRPC server for unary calls; CSI and plugin registration have no others. It is built on node:http2: the full gRPC
 * libraries are slower per call and take more memory (DEPENDENCIES.txt).
 */
export interface GrpcServer {
  /** Call `listen` on it. */
  readonly server: Server;
  /**
   * Refuses new calls and waits for the calls in flight. After `graceMs` it aborts the remaining calls, and soon after that it
   * destroys the connections.
   */
  close(graceMs: number): Promise<void>;
}

export interface GrpcServerOptions {
  readonly methods: Methods;
  readonly clock: Clock;
  /** Maps what a handler threw to a status, and logs it. */
  readonly statusOf: (thrown: unknown, call: GrpcCall) => GrpcStatus;
  readonly limits?: Partial<typeof defaultLimits>;
  /** The errors with which calls are aborted, which are then passed to `statusOf`. */
  readonly abortReasons?: { clientGone(): Error; serverStopping(): Error };
  /** Called after every call with its method, status code and duration. */
  readonly onCallEnd?: (method: string, code: number, seconds: number) => void;
}

const defaultLimits = {
  connections: 256,
  /** The limit on calls in flight, for all connections together. */
  calls: 1_024,
  messageBytes: 1024 * 1024,
  /** The deadline of calls that have none, and the limit on the deadlines of other calls. */
  callMs: 300_000,
};

const forceCloseMs = 3_000;

interface ServerState extends GrpcServerOptions {
  readonly abortReasons: NonNullable<GrpcServerOptions['abortReasons']>;
  readonly maximums: typeof defaultLimits;
  /** The controllers of the calls in flight. */
  readonly inFlight: Set<AbortController>;
  isClosing: boolean;
}

export function createGrpcServer(options: GrpcServerOptions): GrpcServer {
  const limits = { ...defaultLimits, ...options.limits };
  const state: ServerState = {
    abortReasons: defaultAbortReasons,
    ...options,
    maximums: limits,
    inFlight: new Set(),
    isClosing: false,
  };
  const http2 = createHttp2Server({
    maxHeaderListPairs: 64,
    maxSendHeaderBlockLength: 64 * 1024,
    settings: { maxConcurrentStreams: limits.calls, maxHeaderListSize: 16 * 1024, enablePush: false },
  });
  const abortCalls = (): void => {
    for (const call of state.inFlight) call.abort(state.abortReasons.serverStopping());
  };
  const sessions = trackSessions(http2);
  http2.on('stream', (stream, headers) => void handleStream(state, stream, headers));
  // Node emits this for connections that violate HTTP/2, and closes them.
  http2.on('sessionError', () => undefined);
  const server = createServer({ allowHalfOpen: true }, (socket: Socket) => {
    http2.emit('connection', withAcceptableAuthority(socket));
  });
  server.maxConnections = limits.connections;
  return {
    server,
    close: async (graceMs) => {
      state.isClosing = true;
      const { promise, resolve } = Promise.withResolvers<void>();
      if (server.listening) server.close(() => resolve());
      else resolve();
      for (const session of sessions) session.close();
      const { clock } = options;
      using _abort = clock.after(graceMs, abortCalls);
      using _destroy = clock.after(graceMs + forceCloseMs, () => {
        for (const session of sessions) session.destroy();
      });
      await promise;
      abortCalls();
    },
  };
}

function trackSessions(http2: Http2Server): ReadonlySet<ServerHttp2Session> {
  const sessions = new Set<ServerHttp2Session>();
  http2.on('session', (session) => {
    sessions.add(session);
    session.once('close', () => sessions.delete(session));
  });
  return sessions;
}

const defaultAbortReasons: ServerState['abortReasons'] = {
  clientGone: () => new GrpcError('the caller has gone', { code: grpcCodes.canceled }),
  serverStopping: () => new GrpcError('the server is stopping', { code: grpcCodes.unavailable }),
};

/** Never throws: every failure becomes a reply. */
async function handleStream(
  state: ServerState,
  stream: ServerHttp2Stream,
  headers: IncomingHttpHeaders,
): Promise<void> {
  stream.on('error', () => undefined);
  const method = headers[':path'] ?? '';
  if (!(headers['content-type'] ?? '').startsWith('application/grpc')) {
    stream.respond({ ':status': 415 }, { endStream: true });
    stream.close(constants.NGHTTP2_NO_ERROR);
    return;
  }
  const controller = new AbortController();
  state.inFlight.add(controller);
  stream.once('close', () => {
    if (state.inFlight.has(controller)) controller.abort(state.abortReasons.clientGone());
  });
  try {
    const callerTimeoutMs = parseTimeout(headerText(headers['grpc-timeout']));
    using limit = state.clock.deadline(
      Math.min(callerTimeoutMs ?? state.maximums.callMs, state.maximums.callMs),
      controller.signal,
    );
    const call: GrpcCall = { signal: limit.signal, method };
    await runCall(state, stream, call);
  } catch (thrown) {
    // Only failures before `runCall` arrive here.
    sendError(
      stream,
      thrown instanceof GrpcError ? thrown : new GrpcError('the call failed', { code: grpcCodes.internal }),
    );
  } finally {
    state.inFlight.delete(controller);
  }
}

async function runCall(state: ServerState, stream: ServerHttp2Stream, call: GrpcCall): Promise<void> {
  const startedAt = state.clock.elapsed();
  // All unknown methods count as one, to bound the number of metrics.
  const method = state.methods.has(call.method) ? call.method : 'unknown';
  const reportEnd = (code: number): void =>
    state.onCallEnd?.(method, code, (state.clock.elapsed() - startedAt) / 1_000);
  try {
    if (state.isClosing) throw state.abortReasons.serverStopping();
    if (state.inFlight.size > state.maximums.calls)
      throw new GrpcError('too many calls in flight', { code: grpcCodes.unavailable });
    const handle = state.methods.get(call.method);
    if (handle === undefined)
      throw new GrpcError(`there is no method ${call.method}`, { code: grpcCodes.unimplemented });
    const message = decodeFrame(await readBody(stream, state.maximums.messageBytes + 5, call.signal));
    sendReply(stream, await waitWithGrace(handle(message, call), call.signal, state.clock));
    reportEnd(grpcCodes.ok);
  } catch (thrown) {
    const status = thrown instanceof GrpcError ? thrown : state.statusOf(thrown, call);
    sendError(stream, status);
    reportEnd(status.code);
  }
}

const headerText = (header: string | readonly string[] | undefined): string | undefined =>
  typeof header === 'string' ? header : header?.[0];

async function readBody(stream: ServerHttp2Stream, maxBytes: number, signal: AbortSignal): Promise<Buffer> {
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
  const chunks: Buffer[] = [];
  let length = 0;
  stream.on('data', (chunk: Buffer) => {
    length += chunk.length;
    if (length > maxBytes)
      reject(new GrpcError(`a message has at most ${maxBytes - 5} bytes`, { code: grpcCodes.resourceExhausted }));
    else chunks.push(chunk);
  });
  stream.once('end', () => resolve(Buffer.concat(chunks)));
  return await unlessAborted(promise, signal);
}

const contentType = 'application/grpc+proto';

function sendReply(stream: ServerHttp2Stream, message: Uint8Array): void {
  if (stream.destroyed || stream.closed) return;
  stream.respond({ ':status': 200, 'content-type': contentType }, { waitForTrailers: true });
  stream.once('wantTrailers', () => stream.sendTrailers({ 'grpc-status': String(grpcCodes.ok) }));
  stream.end(encodeFrame(message));
}

function sendError(stream: ServerHttp2Stream, { code, message }: GrpcStatus): void {
  if (stream.destroyed || stream.closed || stream.headersSent) return;
  const status = { 'grpc-status': String(code), 'grpc-message': encodeStatusMessage(message.slice(0, 4_096)) };
  stream.respond({ ':status': 200, 'content-type': contentType, ...status }, { endStream: true });
  // Do not wait for the rest of the request. RFC 9113, section 8.1.
  if (!stream.readableEnded) stream.close(constants.NGHTTP2_NO_ERROR);
}
