import { type IncomingMessage, Agent as PlainAgent } from 'node:http';
import { Agent as SecureAgent } from 'node:https';
import { createSecureContext, type SecureContext } from 'node:tls';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { httpFailure, pathWithQuery, readText, send, targetOf } from '#base/http.ts';
import { openStream } from '#base/open-stream.ts';
import type { Identity, KubeAccess } from './access.ts';
import { KubeError, misconfigured } from './errors.ts';
import { statusError } from './status.ts';

export interface ApiRequest {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly query?: Readonly<Record<string, string | undefined>>;
  readonly body?: object;
  /** The type of the body, if it is not `application/json`. */
  readonly contentType?: string;
  readonly limitMs: number;
  readonly maxBytes: number;
}

/** HTTP to the API server with limits on time, bytes and connections. Error statuses become exceptions. */
export interface KubeHttp extends Disposable {
  request(out: ApiRequest, signal: AbortSignal): Promise<string>;
  /** The deadline covers the response header only. The body lasts until the signal ends it. */
  openStream(out: ApiRequest, signal: AbortSignal): Promise<IncomingMessage>;
}

export interface KubeHttpOptions {
  readonly access: KubeAccess;
  readonly clock: Clock;
  /** The User-Agent header. */
  readonly userAgent: string;
  readonly maxSockets?: number;
  /**
   * Called for every call when it has a response or has failed. `verb` is `watch` for watches; `code` is the status or the
   * failure.
   */
  readonly onResponse?: (call: { readonly verb: string; readonly code: string }) => void;
}

/** An error message of the API server is a line or two. */
const maxError = 64 << 10;
/**
 * The API server closes idle connections after 90 s. Close them earlier, so that no call is sent on a connection that is being
 * closed.
 */
const idleMs = 30_000;

type ConnectionAgent = PlainAgent | SecureAgent | false;
/** Streams get connections of their own, so that calls always find a free one. */
const ownConnection = false;

interface ResponseHead {
  readonly answer: IncomingMessage;
  readonly identity: Identity;
}

/** The name of a call in messages. Without the query, which may contain text of other users. */
export const callOf = ({ method, path }: Pick<ApiRequest, 'method' | 'path'>): string => `${method} ${path}`;

export function createKubeHttp(options: KubeHttpOptions): KubeHttp {
  const { access, clock, userAgent, maxSockets = 32, onResponse } = options;
  const target = targetOf(access.server);
  // Keep all connections for a while: in a burst, a new connection for each call costs both sides more than the call.
  const agentOptions = { keepAlive: true, maxSockets, maxFreeSockets: maxSockets, timeout: idleMs };
  const agent = target.isSecure ? new SecureAgent(agentOptions) : new PlainAgent(agentOptions);
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
    // The agent does not share connections between identities.
    const tls = target.isSecure ? { ...identity.tls, secureContext: secureContextOf(identity.tls) } : {};
    const path = pathWithQuery(out.path, out.query);
    return {
      answer: await send(target, { method: out.method, path, headers, body, agent: by, tls }, signal),
      identity,
    };
  }

  /** A call that got 401 has done nothing, so it can be repeated with a newer credential if there is one. */
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

  /** Reports a failure to `onResponse`. */
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
      return openStream({ clock, limitMs: out.limitMs, open, failureOf: failure }, signal);
    },
    [Symbol.dispose]: () => agent.destroy(),
  };
}

/** Parses the certificates once per identity, not for every connection: parsing takes longer than connecting. */
function createSecureContextCache(): (tls: Identity['tls']) => SecureContext {
  const known = new WeakMap<Identity['tls'], SecureContext>();
  return (tls) => {
    const before = known.get(tls);
    if (before !== undefined) return before;
    const { ca, cert, key } = tls;
    const secureContext = createSecureContext({ ca, cert, key });
    known.set(tls, secureContext);
    return secureContext;
  };
}

const secretOf = ({ authorization }: Identity): string => authorization?.replace(/^\S+ /, '') ?? '';

/** All failures become KubeErrors here. */
export function failureOf(call: string, thrown: unknown, signal: AbortSignal): KubeError {
  if (thrown instanceof KubeError) return thrown;
  if (!signal.aborted && isErrno(thrown, 'ERR_INVALID_CHAR'))
    return misconfigured(`${call}: the credential has characters in it that cannot be sent`);
  const { failure, why, cause } = httpFailure(thrown, 'the API server', signal);
  return new KubeError(`${call}: ${why}`, { failure, cause });
}
