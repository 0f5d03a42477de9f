import { type ClientRequest, request as httpRequest, type IncomingMessage, type RequestOptions } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { errnoOf } from '#base/errno.ts';
import type { ClusterWay } from './cluster-connection.ts';
import type { Where } from './connection.ts';

export interface Outgoing {
  readonly method: string;
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

/** Anything else (refused, no such socket, a wrong certificate) happens before the server sees a request. */
const afterwards = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED', 'ERR_STREAM_PREMATURE_CLOSE']);

/** The connection failed. `connected`: the server may have seen the request. */
export class Broken extends Error {
  override readonly name = 'Broken';
  readonly connected: boolean;
  readonly code: string;
  constructor(message: string, { cause }: { readonly cause: unknown }) {
    super(message, { cause });
    this.code = errnoOf(cause) ?? 'unknown';
    this.connected = afterwards.has(this.code);
  }
}

const connectMs = 10_000;
/** No answer is larger: lists come in pages. */
const maxAnswer = 64 << 20;

export class TooLarge extends Error {
  override readonly name = 'TooLarge';
}

function start(where: Where, out: Outgoing, signal: AbortSignal): ClientRequest {
  const headers: Record<string, string> = { accept: 'application/json, application/problem+json', ...out.headers };
  if (out.body !== undefined) {
    headers['content-type'] = 'application/json';
    headers['content-length'] = String(Buffer.byteLength(out.body));
  }
  // A connection for each request: a kept one may be closed by the server at the very moment it is used again.
  const common: RequestOptions = { method: out.method, headers, signal, agent: false };
  if (where.kind === 'socket') return httpRequest({ ...common, socketPath: where.path, path: out.path });
  if (where.kind === 'cluster') return startInCluster(where, common, out);
  if (where.token !== undefined) headers['authorization'] = `Bearer ${where.token}`;
  const { protocol, hostname, port, pathname } = where.url;
  const to: RequestOptions = {
    ...common,
    host: hostname.replace(/^\[|\]$/g, ''),
    path: pathname.replace(/\/$/, '') + out.path,
    ...(port === '' ? {} : { port }),
  };
  return protocol === 'https:' ? httpsRequest(to) : httpRequest(to);
}

/** Each token goes to the one whom it is for: what the kubeconfig has, to the API server only. */
function startInCluster(way: ClusterWay, common: RequestOptions, out: Outgoing): ClientRequest {
  const { protocol, hostname, port, pathname } = way.server;
  const headers = {
    ...(common.headers as Record<string, string>),
    ...(way.authorization === undefined ? {} : { authorization: way.authorization }),
    'stowage-authorization': `Bearer ${way.token}`,
  };
  const to: RequestOptions = {
    ...{ ...common, headers, host: hostname.replace(/^\[|\]$/g, '') },
    path: `${pathname.replace(/\/$/, '')}${way.prefix}${out.path}`,
    ...(port === '' ? {} : { port }),
  };
  return protocol === 'https:' ? httpsRequest({ ...to, ...way.tls }) : httpRequest(to);
}

/** Sends it and waits for the head of the answer; the body is the caller's to read. */
export async function send(where: Where, out: Outgoing, signal: AbortSignal): Promise<IncomingMessage> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  const sent = start(where, out, signal);
  // The caller's deadline may be long or absent; an address where nobody lives is known much sooner.
  const timer = setTimeout(
    () => sent.destroy(Object.assign(new Error('connecting took too long'), { code: 'ETIMEDOUT' })),
    connectMs,
  );
  sent.on('socket', (socket) => {
    socket.setKeepAlive(true, 30_000);
    if (!socket.connecting) clearTimeout(timer);
    socket.once('connect', () => clearTimeout(timer));
  });
  sent.on('response', resolve);
  sent.on('error', reject);
  sent.end(out.body);
  try {
    return await promise;
  } catch (cause) {
    signal.throwIfAborted();
    throw new Broken('the connection failed', { cause });
  } finally {
    clearTimeout(timer);
  }
}

export async function readBody(answer: IncomingMessage, signal: AbortSignal): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      length += chunk.length;
      if (length > maxAnswer) throw new TooLarge(`the answer is larger than ${maxAnswer} bytes`);
      chunks.push(chunk);
    }
  } catch (cause) {
    answer.destroy();
    signal.throwIfAborted();
    if (cause instanceof TooLarge) throw cause;
    throw new Broken('the connection failed', { cause });
  }
  return Buffer.concat(chunks).toString('utf8');
}
