import { type ClientRequest, type IncomingMessage, Agent as PlainAgent, request as plainRequest } from 'node:http';
import { Agent as SecureAgent, request as secureRequest } from 'node:https';
import { StringDecoder } from 'node:string_decoder';
import { createSecureContext, type SecureContext } from 'node:tls';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { opened } from '#base/open-stream.ts';
import type { Identity, KubeAccess } from './access.ts';
import { garbled, KubeError, misconfigured } from './errors.ts';
import { refusal } from './status.ts';

export interface Outgoing {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly query?: Readonly<Record<string, string | undefined>>;
  readonly body?: object;
  /** Of the body, where it is not `application/json`. */
  readonly contentType?: string;
  readonly limitMs: number;
  readonly maxBytes: number;
}

/** HTTP to the API server, bounded in time, bytes and connections. An answer that says no is an error. */
export interface KubeHttp extends Disposable {
  ask(out: Outgoing, signal: AbortSignal): Promise<string>;
  /** The deadline is for the head of the answer; its body then takes as long as it takes, until the signal ends it. */
  open(out: Outgoing, signal: AbortSignal): Promise<IncomingMessage>;
}

export interface KubeHttpOptions {
  readonly access: KubeAccess;
  readonly clock: Clock;
  /** Who we say we are. */
  readonly userAgent: string;
  readonly maxSockets?: number;
  /** Of every call when it has its answer, or none: `watch` for what goes on, the status, or how it failed. */
  readonly observed?: (call: { readonly verb: string; readonly code: string }) => void;
}

/** What the API server says of an error is a line or two. */
const maxError = 64 << 10;
/** The API server hangs up after 90 s: before that, so that no call is sent on a connection that is being closed. */
const idleMs = 30_000;

type Way = PlainAgent | SecureAgent | false;
/** For streams, so that however many there are, calls find a connection. */
const ownConnection = false;

interface Head {
  readonly answer: IncomingMessage;
  readonly identity: Identity;
}

/** What messages call it: no query, which may hold what somebody else wrote. */
export const callOf = ({ method, path }: Pick<Outgoing, 'method' | 'path'>): string => `${method} ${path}`;

export function createKubeHttp(options: KubeHttpOptions): KubeHttp {
  const { access, clock, userAgent, maxSockets = 32, observed } = options;
  const { server } = access;
  const isSecure = server.protocol === 'https:';
  // All of them are kept for a while: a burst that opens a connection for each call costs both sides more than its calls.
  const how = { keepAlive: true, maxSockets, maxFreeSockets: maxSockets, timeout: idleMs };
  const agent = isSecure ? new SecureAgent(how) : new PlainAgent(how);
  const to = {
    host: server.hostname.replace(/^\[(.*)\]$/, '$1'),
    port: server.port === '' ? (isSecure ? 443 : 80) : Number(server.port),
  };
  const before = server.pathname.replace(/\/$/, '');
  const trust = createTrust();

  function start(
    out: Outgoing,
    body: Buffer | undefined,
    identity: Identity,
    by: Way,
    signal: AbortSignal,
  ): ClientRequest {
    const headers: Record<string, string> = { accept: 'application/json', 'user-agent': userAgent };
    if (body !== undefined) {
      headers['content-type'] = out.contentType ?? 'application/json';
      // Node does not say it by itself where a method usually has no body, such as DELETE.
      headers['content-length'] = String(body.length);
    }
    if (identity.authorization !== undefined) headers['authorization'] = identity.authorization;
    const options = { ...to, path: `${before}${pathOf(out)}`, method: out.method, headers, signal, agent: by };
    // The agent keeps connections of one identity apart from those of another.
    if (!isSecure) return plainRequest(options);
    const secure = { ...options, ...identity.tls, secureContext: trust(identity.tls) };
    return secureRequest(secure);
  }

  async function once(out: Outgoing, identity: Identity, by: Way, signal: AbortSignal): Promise<Head> {
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    signal.throwIfAborted();
    const body = out.body === undefined ? undefined : Buffer.from(JSON.stringify(out.body));
    const sent = start(out, body, identity, by, signal);
    // One that still waits for a connection would hear of it only when it has one.
    const stop = (): void => reject(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    sent.on('close', () => signal.removeEventListener('abort', stop));
    sent.on('response', resolve);
    sent.on('error', (cause) => reject(Object.assign(cause, { again: sent.reusedSocket })));
    sent.end(body);
    return { answer: await promise, identity };
  }

  /** What only asks is sent again where the kept connection turns out to be closed. */
  async function sure(out: Outgoing, identity: Identity, by: Way, signal: AbortSignal): Promise<Head> {
    try {
      return await once(out, identity, by, signal);
    } catch (thrown) {
      if (out.method !== 'GET' || !hadBeenClosed(thrown) || signal.aborted) throw thrown;
      return await once(out, identity, by, signal);
    }
  }

  /** Who was not let in has done nothing: with a newer credential, if there is one, any call may be sent again. */
  async function head(out: Outgoing, by: Way, signal: AbortSignal): Promise<Head> {
    const identity = await access.identity(signal);
    const first = await sure(out, identity, by, signal);
    if (first.answer.statusCode !== 401) return first;
    const newer = await access.identity(signal, identity);
    if (newer === identity) return first;
    first.answer.destroy();
    return await sure(out, newer, by, signal);
  }

  async function accepted(out: Outgoing, { answer, identity }: Head): Promise<IncomingMessage> {
    const status = answer.statusCode ?? 0;
    if (status >= 200 && status < 300) return answer;
    const body = await readAll(answer, callOf(out), maxError);
    throw refusal(callOf(out), { status, body, retryAfter: answer.headers['retry-after'] }, secretOf(identity));
  }

  /** What it came to, told on the way. */
  function failed(verb: string, failure: KubeError): KubeError {
    observed?.({ verb, code: failure.status === 0 ? failure.failure : String(failure.status) });
    return failure;
  }

  return {
    ask: async (out, signal) => {
      using limit = clock.deadline(out.limitMs, signal);
      const verb = out.method.toLowerCase();
      try {
        const answer = await accepted(out, await head(out, agent, limit.signal));
        const text = await readAll(answer, callOf(out), out.maxBytes);
        observed?.({ verb, code: String(answer.statusCode) });
        return text;
      } catch (thrown) {
        throw failed(verb, failureOf(callOf(out), thrown, limit.signal));
      }
    },
    open: (out, signal) => {
      const open = async (ended: AbortSignal): Promise<IncomingMessage> => {
        const answer = await accepted(out, await head(out, ownConnection, ended));
        observed?.({ verb: 'watch', code: String(answer.statusCode) });
        return answer;
      };
      const failure = (thrown: unknown, ended: AbortSignal): KubeError =>
        failed('watch', failureOf(callOf(out), thrown, ended));
      return opened({ clock, limitMs: out.limitMs, open, failureOf: failure }, signal);
    },
    [Symbol.dispose]: () => agent.destroy(),
  };
}

/** Certificates are read once for an identity, and not for every connection: that takes longer than to connect. */
function createTrust(): (tls: Identity['tls']) => SecureContext {
  const known = new WeakMap<Identity['tls'], SecureContext>();
  return (tls) => {
    const before = known.get(tls);
    if (before !== undefined) return before;
    const { ca, cert, key } = tls;
    const made = createSecureContext({ ca, cert, key });
    known.set(tls, made);
    return made;
  };
}

function pathOf({ path, query: given }: Outgoing): string {
  if (given === undefined) return path;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) if (value !== undefined) query.set(name, value);
  return query.size === 0 ? path : `${path}?${query.toString()}`;
}

const secretOf = ({ authorization }: Identity): string => authorization?.replace(/^\S+ /, '') ?? '';

/** Piece by piece: put together as bytes first, a page of a list would be in memory three times. */
async function readAll(answer: IncomingMessage, call: string, most: number): Promise<string> {
  const decoder = new StringDecoder('utf8');
  let text = '';
  let length = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    length += chunk.length;
    // Leaving the loop ends the connection.
    if (length > most) throw garbled(call, `the answer is larger than ${most} bytes`);
    text += decoder.write(chunk);
  }
  return text + decoder.end();
}

/** A kept connection on which the API server hung up while it was idle. */
const hadBeenClosed = (thrown: unknown): boolean =>
  thrown instanceof Error && 'again' in thrown && thrown.again === true && isBroken(thrown);

const broken = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED', 'ERR_STREAM_PREMATURE_CLOSE']);
const codeOf = (thrown: unknown): string =>
  thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'string' ? thrown.code : '';
const isBroken = (thrown: unknown): boolean => broken.has(codeOf(thrown));

/** Before the call itself was sent: no address, no connection, no trust. */
function isBefore(thrown: unknown): boolean {
  const code = codeOf(thrown);
  const syscall = thrown instanceof Error && 'syscall' in thrown ? thrown.syscall : '';
  return syscall === 'connect' || syscall === 'getaddrinfo' || code.includes('CERT') || untrusted.has(code);
}
const untrusted = new Set(['UNABLE_TO_VERIFY_LEAF_SIGNATURE', 'ERR_SSL_WRONG_VERSION_NUMBER']);

/** The single funnel. */
export function failureOf(call: string, thrown: unknown, signal: AbortSignal): KubeError {
  if (thrown instanceof KubeError) return thrown;
  if (signal.aborted) {
    const cause: unknown = signal.reason;
    if (cause instanceof DeadlineExceeded)
      return new KubeError(`${call}: ${cause.message}`, { failure: 'deadline', cause });
    return new KubeError(`${call}: cancelled`, { failure: 'canceled', cause });
  }
  if (isBroken(thrown)) return new KubeError(`${call}: the API server hung up`, { failure: 'lost', cause: thrown });
  if (codeOf(thrown) === 'ERR_INVALID_CHAR')
    return misconfigured(`${call}: the credential has characters in it that cannot be sent`);
  const why = thrown instanceof Error ? thrown.message : String(thrown);
  if (codeOf(thrown).startsWith('HPE_')) return garbled(call, `the answer is not HTTP (${why})`);
  return new KubeError(`${call}: ${why}`, { failure: isBefore(thrown) ? 'unreachable' : 'lost', cause: thrown });
}
