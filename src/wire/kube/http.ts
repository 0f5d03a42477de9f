import { type IncomingMessage, Agent as PlainAgent } from 'node:http';
import { Agent as SecureAgent } from 'node:https';
import { createSecureContext, type SecureContext } from 'node:tls';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { httpFailure, pathWithQuery, readText, send, targetOf } from '#base/http.ts';
import { opened } from '#base/open-stream.ts';
import type { Identity, KubeAccess } from './access.ts';
import { KubeError, misconfigured } from './errors.ts';
import { statusError } from './status.ts';

export interface ApiRequest {
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
  request(out: ApiRequest, signal: AbortSignal): Promise<string>;
  /** The deadline is for the head of the answer; its body then takes as long as it takes, until the signal ends it. */
  openStream(out: ApiRequest, signal: AbortSignal): Promise<IncomingMessage>;
}

export interface KubeHttpOptions {
  readonly access: KubeAccess;
  readonly clock: Clock;
  /** Who we say we are. */
  readonly userAgent: string;
  readonly maxSockets?: number;
  /** Of every call when it has its answer, or none: `watch` for what goes on, the status, or how it failed. */
  readonly onResponse?: (call: { readonly verb: string; readonly code: string }) => void;
}

/** What the API server says of an error is a line or two. */
const maxError = 64 << 10;
/** The API server hangs up after 90 s: before that, so that no call is sent on a connection that is being closed. */
const idleMs = 30_000;

type ConnectionAgent = PlainAgent | SecureAgent | false;
/** For streams, so that however many there are, calls find a connection. */
const ownConnection = false;

interface ResponseHead {
  readonly answer: IncomingMessage;
  readonly identity: Identity;
}

/** What messages call it: no query, which may hold what somebody else wrote. */
export const callOf = ({ method, path }: Pick<ApiRequest, 'method' | 'path'>): string => `${method} ${path}`;

export function createKubeHttp(options: KubeHttpOptions): KubeHttp {
  const { access, clock, userAgent, maxSockets = 32, onResponse } = options;
  const target = targetOf(access.server);
  // All of them are kept for a while: a burst that opens a connection for each call costs both sides more than its calls.
  const how = { keepAlive: true, maxSockets, maxFreeSockets: maxSockets, timeout: idleMs };
  const agent = target.isSecure ? new SecureAgent(how) : new PlainAgent(how);
  const secureContextOf = createSecureContextCache();

  async function attempt(
    out: ApiRequest,
    identity: Identity,
    by: ConnectionAgent,
    signal: AbortSignal,
  ): Promise<ResponseHead> {
    const headers: Record<string, string> = { accept: 'application/json', 'user-agent': userAgent };
    if (out.body !== undefined) headers['content-type'] = out.contentType ?? 'application/json';
    if (identity.authorization !== undefined) headers['authorization'] = identity.authorization;
    const body = out.body === undefined ? undefined : JSON.stringify(out.body);
    // The agent keeps connections of one identity apart from those of another.
    const tls = target.isSecure ? { ...identity.tls, secureContext: secureContextOf(identity.tls) } : {};
    const path = pathWithQuery(out.path, out.query);
    return {
      answer: await send(target, { method: out.method, path, headers, body, agent: by, tls }, signal),
      identity,
    };
  }

  /** Who was not let in has done nothing: with a newer credential, if there is one, any call may be sent again. */
  async function head(out: ApiRequest, by: ConnectionAgent, signal: AbortSignal): Promise<ResponseHead> {
    const identity = await access.identity(signal);
    const first = await attempt(out, identity, by, signal);
    if (first.answer.statusCode !== 401) return first;
    const newer = await access.identity(signal, identity);
    if (newer === identity) return first;
    first.answer.destroy();
    return await attempt(out, newer, by, signal);
  }

  async function requireSuccess(out: ApiRequest, { answer, identity }: ResponseHead): Promise<IncomingMessage> {
    const status = answer.statusCode ?? 0;
    if (status >= 200 && status < 300) return answer;
    const body = await readText(answer, maxError);
    throw statusError(callOf(out), { status, body, retryAfter: answer.headers['retry-after'] }, secretOf(identity));
  }

  /** What it came to, told on the way. */
  function reportFailure(verb: string, failure: KubeError): KubeError {
    onResponse?.({ verb, code: failure.status === 0 ? failure.failure : String(failure.status) });
    return failure;
  }

  return {
    request: async (out, signal) => {
      using limit = clock.deadline(out.limitMs, signal);
      const verb = out.method.toLowerCase();
      try {
        const answer = await requireSuccess(out, await head(out, agent, limit.signal));
        const text = await readText(answer, out.maxBytes);
        onResponse?.({ verb, code: String(answer.statusCode) });
        return text;
      } catch (thrown) {
        throw reportFailure(verb, failureOf(callOf(out), thrown, limit.signal));
      }
    },
    openStream: (out, signal) => {
      const open = async (ended: AbortSignal): Promise<IncomingMessage> => {
        const answer = await requireSuccess(out, await head(out, ownConnection, ended));
        onResponse?.({ verb: 'watch', code: String(answer.statusCode) });
        return answer;
      };
      const failure = (thrown: unknown, ended: AbortSignal): KubeError =>
        reportFailure('watch', failureOf(callOf(out), thrown, ended));
      return opened({ clock, limitMs: out.limitMs, open, failureOf: failure }, signal);
    },
    [Symbol.dispose]: () => agent.destroy(),
  };
}

/** Certificates are read once for an identity, and not for every connection: that takes longer than to connect. */
function createSecureContextCache(): (tls: Identity['tls']) => SecureContext {
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

const secretOf = ({ authorization }: Identity): string => authorization?.replace(/^\S+ /, '') ?? '';

/** The single funnel. */
export function failureOf(call: string, thrown: unknown, signal: AbortSignal): KubeError {
  if (thrown instanceof KubeError) return thrown;
  if (!signal.aborted && isErrno(thrown, 'ERR_INVALID_CHAR'))
    return misconfigured(`${call}: the credential has characters in it that cannot be sent`);
  const { failure, why, cause } = httpFailure(thrown, 'the API server', signal);
  return new KubeError(`${call}: ${why}`, { failure, cause });
}
