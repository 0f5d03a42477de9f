import { type Agent, type ClientRequest, type IncomingMessage, request as plainRequest } from 'node:http';
import { request as secureRequest } from 'node:https';
import { pipeline } from 'node:stream/promises';
import { StringDecoder } from 'node:string_decoder';
import { onAbort } from './aborted.ts';
import { DeadlineExceeded } from './clock.ts';
import { errnoOf, isErrno } from './errno.ts';

/** The server that requests go to. */
export interface HttpTarget {
  readonly isSecure: boolean;
  readonly endpoint: { readonly socketPath: string } | { readonly host: string; readonly port: number };
  /** Prepended to the path of every request. Empty, or without a trailing slash. */
  readonly prefix: string;
}

export const socketTarget = (socketPath: string): HttpTarget => ({
  isSecure: false,
  endpoint: { socketPath },
  prefix: '',
});

export function targetOf({ protocol, hostname, port, pathname }: URL): HttpTarget {
  const isSecure = protocol === 'https:';
  const host = hostname.replace(/^\[(.*)\]$/, '$1');
  const endpoint = { host, port: port === '' ? (isSecure ? 443 : 80) : Number(port) };
  return { isSecure, endpoint, prefix: pathname.replace(/\/$/, '') };
}

export interface HttpCall {
  readonly method: string;
  /** Including the query. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Sent with a content-length. */
  readonly body?: string | undefined;
  /** Streamed instead of a body. */
  readonly stream?: AsyncIterable<Uint8Array> | undefined;
  /** False: use a new connection, so that a long call does not block a pooled one. */
  readonly agent: Agent | false;
  /** Further options of `https.request`. */
  readonly tls?: object;
}

/** Starts a request. The signal aborts it and its answer. */
export function startRequest(target: HttpTarget, call: HttpCall, signal: AbortSignal): ClientRequest {
  signal.throwIfAborted();
  const { method, body, agent, tls } = call;
  // For methods that usually have no body, such as DELETE, Node does not set the length itself.
  const length = body === undefined ? {} : { 'content-length': String(Buffer.byteLength(body)) };
  const headers = { ...call.headers, ...length };
  const options = { ...target.endpoint, path: `${target.prefix}${call.path}`, method, headers, agent, signal };
  return target.isSecure ? secureRequest({ ...options, ...tls }) : plainRequest(options);
}

/** Sends the body and waits for the head of the answer. Rejects with the signal's reason as soon as it is aborted. */
export async function sendAndAwaitHead(
  sent: ClientRequest,
  call: HttpCall,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  // A request that is queued for a connection notices an abort only when it gets one.
  const abortListener = onAbort(signal, () => reject(signal.reason));
  sent.on('close', () => abortListener[Symbol.dispose]());
  sent.on('response', resolve);
  sent.on('error', reject);
  if (call.stream === undefined) sent.end(call.body);
  else pipeline(call.stream, sent).catch((cause: Error) => sent.destroy(cause));
  return await promise;
}

/** Returns the head of the answer. Resends a GET once if the server has closed the idle connection. */
export async function send(target: HttpTarget, call: HttpCall, signal: AbortSignal): Promise<IncomingMessage> {
  const first = startRequest(target, call, signal);
  try {
    return await sendAndAwaitHead(first, call, signal);
  } catch (thrown) {
    if (call.method !== 'GET' || !first.reusedSocket || !isHangUp(thrown) || signal.aborted) throw thrown;
    return await sendAndAwaitHead(startRequest(target, call, signal), call, signal);
  }
}

export class AnswerTooLarge extends Error {
  override readonly name = 'AnswerTooLarge';
}

/** Decodes chunk by chunk: concatenating first would hold a large answer in memory three times. */
export async function readText(answer: IncomingMessage, maxBytes: number): Promise<string> {
  const decoder = new StringDecoder('utf8');
  let text = '';
  let length = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    length += chunk.length;
    // Leaving the loop closes the connection.
    if (length > maxBytes) throw new AnswerTooLarge(`the answer is larger than ${maxBytes} bytes`);
    text += decoder.write(chunk);
  }
  return text + decoder.end();
}

export function pathWithQuery(path: string, query: Readonly<Record<string, string | undefined>> = {}): string {
  const definedPairs = Object.entries(query).filter((pair): pair is [string, string] => pair[1] !== undefined);
  return definedPairs.length === 0 ? path : `${path}?${new URLSearchParams(definedPairs).toString()}`;
}

/** The connection broke. The server may have received the request. */
export const isHangUp = (thrown: unknown): boolean =>
  isErrno(thrown, 'ECONNRESET', 'EPIPE', 'ECONNABORTED', 'ERR_STREAM_PREMATURE_CLOSE');

/**
 * - `unreachable`: no connection could be established; the request was not sent
 * - `lost`: the connection broke before the answer was complete; the server may have processed the request
 * - `deadline`: no answer in time; the server may have processed the request
 * - `canceled`: the caller aborted the request
 * - `garbled`: the answer is not HTTP, or too large
 */
export type HttpFailure = 'unreachable' | 'lost' | 'deadline' | 'canceled' | 'garbled';

/** Why a request failed. `server` is the server's name in messages. */
export function httpFailure(
  thrown: unknown,
  server: string,
  signal: AbortSignal,
): { readonly failure: HttpFailure; readonly why: string; readonly cause?: unknown } {
  if (thrown instanceof AnswerTooLarge) return { failure: 'garbled', why: thrown.message };
  if (signal.aborted) {
    const cause: unknown = signal.reason;
    if (cause instanceof DeadlineExceeded) return { failure: 'deadline', why: cause.message, cause };
    return { failure: 'canceled', why: 'cancelled', cause };
  }
  if (isHangUp(thrown)) return { failure: 'lost', why: `${server} hung up`, cause: thrown };
  const why = thrown instanceof Error ? thrown.message : String(thrown);
  // The parser's error is not kept as the cause: it contains the answer, which may hold a secret.
  if (errnoOf(thrown)?.startsWith('HPE_') === true)
    return { failure: 'garbled', why: `the answer is not HTTP (${why})` };
  return { failure: isBeforeSending(thrown) ? 'unreachable' : 'lost', why, cause: thrown };
}

/** The host was not found, the connection failed, or its certificate is not trusted. */
function isBeforeSending(thrown: unknown): boolean {
  const syscall = thrown instanceof Error && 'syscall' in thrown ? thrown.syscall : '';
  if (syscall === 'connect' || syscall === 'getaddrinfo') return true;
  return (
    errnoOf(thrown)?.includes('CERT') === true ||
    isErrno(thrown, 'UNABLE_TO_VERIFY_LEAF_SIGNATURE', 'ERR_SSL_WRONG_VERSION_NUMBER')
  );
}
