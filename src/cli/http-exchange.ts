import type { IncomingMessage } from 'node:http';
import { errnoOf } from '#base/errno.ts';
import {
  AnswerTooLarge,
  type HttpCall,
  type HttpTarget,
  isHangUp,
  readText,
  sendAndAwaitHead,
  socketTarget,
  startRequest,
  targetOf,
} from '#base/http.ts';
import { answerTypes } from '#base/problem.ts';
import type { ServerAddress } from './connection.ts';

export interface OutgoingRequest {
  readonly method: string;
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

/** The connection failed. `connected`: the server may have seen the request. */
export class ConnectionFailure extends Error {
  override readonly name = 'Broken';
  readonly connected: boolean;
  readonly code: string;
  constructor(message: string, { cause }: { readonly cause: unknown }) {
    super(message, { cause });
    this.code = errnoOf(cause) ?? 'unknown';
    // All other failures (refused, no such socket, a wrong certificate) happen before the server sees a request.
    this.connected = isHangUp(cause);
  }
}

const connectTimeoutMs = 10_000;
/** More than any answer: lists are paged. */
const maxResponseBytes = 64 << 20;

function targetFor(where: ServerAddress): HttpTarget {
  if (where.kind === 'socket') return socketTarget(where.path);
  if (where.kind === 'url') return targetOf(where.url);
  const apiServer = targetOf(where.server);
  return { ...apiServer, prefix: `${apiServer.prefix}${where.prefix}` };
}

/** The kubeconfig's credentials are for the API server only; Stowage's token has a header of its own. */
function credentialsFor(where: ServerAddress): Readonly<Record<string, string>> {
  if (where.kind === 'socket') return {};
  if (where.kind === 'url') return where.token === undefined ? {} : { authorization: `Bearer ${where.token}` };
  return {
    ...(where.authorization === undefined ? {} : { authorization: where.authorization }),
    'stowage-authorization': `Bearer ${where.token}`,
  };
}

function callFor(where: ServerAddress, { method, path, headers, body }: OutgoingRequest): HttpCall {
  const type = body === undefined ? {} : { 'content-type': 'application/json' };
  return {
    method,
    path,
    body,
    headers: { accept: answerTypes, ...headers, ...type, ...credentialsFor(where) },
    // One connection for each request: the server may close a kept one just as it is reused.
    agent: false,
    tls: where.kind === 'cluster' ? where.tls : {},
  };
}

/** Sends the request and waits for the answer's head; the caller reads the body. */
export async function send(where: ServerAddress, out: OutgoingRequest, signal: AbortSignal): Promise<IncomingMessage> {
  const call = callFor(where, out);
  const sent = startRequest(targetFor(where), call, signal);
  // The caller's deadline may be long or absent, so connecting has its own timeout.
  const timer = setTimeout(
    () => sent.destroy(Object.assign(new Error('connect timeout'), { code: 'ETIMEDOUT' })),
    connectTimeoutMs,
  );
  sent.on('socket', (socket) => {
    socket.setKeepAlive(true, 30_000);
    if (!socket.connecting) clearTimeout(timer);
    socket.once('connect', () => clearTimeout(timer));
  });
  try {
    return await sendAndAwaitHead(sent, call, signal);
  } catch (cause) {
    signal.throwIfAborted();
    throw new ConnectionFailure('the connection failed', { cause });
  } finally {
    clearTimeout(timer);
  }
}

export async function readBody(answer: IncomingMessage, signal: AbortSignal): Promise<string> {
  try {
    return await readText(answer, maxResponseBytes);
  } catch (cause) {
    answer.destroy();
    signal.throwIfAborted();
    if (cause instanceof AnswerTooLarge) throw cause;
    throw new ConnectionFailure('the connection failed', { cause });
  }
}
