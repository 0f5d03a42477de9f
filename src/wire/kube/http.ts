import { type IncomingMessage, Agent as PlainAgent } from 'node:http';
import { Agent as SecureAgent } from 'node:https';
import { createSecureContext, type SecureContext } from 'node:tls';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { httpFailure, pathWithQuery, readText, send, targetOf } from '#base/http.ts';
import { openStream } from '#base/open-stream.ts';
import type { Identity, KubeAccess } from './access.ts';
import { configError, KubeError } from './errors.ts';
import { statusError } from './status.ts';

export interface ApiRequest {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly query?: Readonly<Record<string, string | undefined>>;
  readonly body?: object;
  /** The type of the body, if it is not `application/json`. */
  readonly contentType?: string;
  readonly timeoutMs: number;
  readonly maxBytes: number;
}

/** HTTP to the API server with limits on time, bytes and connections. Error statuses become exceptions. */
export interface KubeHttp extends Disposable {
  request(request: ApiRequest, signal: AbortSignal): Promise<string>;
  /** The deadline covers the response header only. The body lasts until the signal ends it. */
  openStream(request: ApiRequest, signal: AbortSignal): Promise<IncomingMessage>;
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
const maxErrorBytes = 64 << 10;
/**
 * The API server closes idle connections after 90 s. Close them earlier, so that no call is sent on a connection that is being
 * closed.
 */
const idleConnectionMs = 30_000;

type ConnectionAgent = PlainAgent | SecureAgent | false;
/** Streams get connections of their own, so that calls always find a free one. */
const dedicatedConnection = false;

interface ResponseHead {
  readonly answer: IncomingMessage;
  readonly identity: Identity;
}

/** The name of a call in messages: without the query, which may contain text of other users. */
export const callOf = ({ method, path }: Pick<ApiRequest, 'method' | 'path'>): string => `${method} ${path}`;

export function createKubeHttp(options: KubeHttpOptions): KubeHttp {
  const { access, clock, userAgent, maxSockets = 32, onResponse } = options;
  const target = targetOf(access.server);
  // Keep all connections for a while: in a burst, a new connection for each call costs both sides more than the call.
  const agentOptions = { keepAlive: true, maxSockets, maxFreeSockets: maxSockets, timeout: idleConnectionMs };
  const agent = target.isSecure ? new SecureAgent(agentOptions) : new PlainAgent(agentOptions);
  const secureContextOf = createSecureContextCache();

  async function sendOnce(
    request: ApiRequest,
    identity: Identity,
    agent: ConnectionAgent,
    signal: AbortSignal,
  ): Promise<ResponseHead> {
    const headers: Record<string, string> = { accept: 'application/json', 'user-agent': userAgent };
    if (request.body !== undefined) headers['content-type'] = request.contentType ?? 'application/json';
    if (identity.authorization !== undefined) headers['authorization'] = identity.authorization;
    const body = request.body === undefined ? undefined : JSON.stringify(request.body);
    // The agent does not share connections between identities.
    const tls = target.isSecure ? { ...identity.tls, secureContext: secureContextOf(identity.tls) } : {};
    const path = pathWithQuery(request.path, request.query);
    return {
      answer: await send(target, { method: request.method, path, headers, body, agent: agent, tls }, signal),
      identity,
    };
  }

  /** After 401 the API server has changed nothing, so the call is repeated once if there is a newer credential. */
  async function sendWithRenewal(
    request: ApiRequest,
    agent: ConnectionAgent,
    signal: AbortSignal,
  ): Promise<ResponseHead> {
    const identity = await access.identity(signal);
    const first = await sendOnce(request, identity, agent, signal);
    if (first.answer.statusCode !== 401) return first;
    const newer = await access.identity(signal, identity);
    if (newer === identity) return first;
    first.answer.destroy();
    return await sendOnce(request, newer, agent, signal);
  }

  async function requireSuccess(request: ApiRequest, { answer, identity }: ResponseHead): Promise<IncomingMessage> {
    const status = answer.statusCode ?? 0;
    if (status >= 200 && status < 300) return answer;
    const body = await readText(answer, maxErrorBytes);
    throw statusError(callOf(request), { status, body, retryAfter: answer.headers['retry-after'] }, secretOf(identity));
  }

  /** Reports a failure to `onResponse`. */
  function reportFailure(verb: string, failure: KubeError): KubeError {
    onResponse?.({ verb, code: failure.status === 0 ? failure.failure : String(failure.status) });
    return failure;
  }

  return {
    request: async (request, signal) => {
      using limit = clock.deadline(request.timeoutMs, signal);
      const verb = request.method.toLowerCase();
      try {
        const answer = await requireSuccess(request, await sendWithRenewal(request, agent, limit.signal));
        const text = await readText(answer, request.maxBytes);
        onResponse?.({ verb, code: String(answer.statusCode) });
        return text;
      } catch (thrown) {
        throw reportFailure(verb, failureOf(callOf(request), thrown, limit.signal));
      }
    },
    openStream: (request, signal) => {
      const open = async (ended: AbortSignal): Promise<IncomingMessage> => {
        const answer = await requireSuccess(request, await sendWithRenewal(request, dedicatedConnection, ended));
        onResponse?.({ verb: 'watch', code: String(answer.statusCode) });
        return answer;
      };
      const failure = (thrown: unknown, ended: AbortSignal): KubeError =>
        reportFailure('watch', failureOf(callOf(request), thrown, ended));
      return openStream({ clock, limitMs: request.timeoutMs, open, failureOf: failure }, signal);
    },
    [Symbol.dispose]: () => agent.destroy(),
  };
}

/** Parses the certificates once per identity, not for every connection: parsing takes longer than connecting. */
function createSecureContextCache(): (tls: Identity['tls']) => SecureContext {
  const contexts = new WeakMap<Identity['tls'], SecureContext>();
  return (tls) => {
    const cached = contexts.get(tls);
    if (cached !== undefined) return cached;
    const { ca, cert, key } = tls;
    const secureContext = createSecureContext({ ca, cert, key });
    contexts.set(tls, secureContext);
    return secureContext;
  };
}

const secretOf = ({ authorization }: Identity): string => authorization?.replace(/^\S+ /, '') ?? '';

/** All failures become KubeErrors here. */
export function failureOf(call: string, thrown: unknown, signal: AbortSignal): KubeError {
  if (thrown instanceof KubeError) return thrown;
  if (!signal.aborted && isErrno(thrown, 'ERR_INVALID_CHAR'))
    return configError(`${call}: the credential has characters in it that cannot be sent`);
  const { failure, why, cause } = httpFailure(thrown, 'the API server', signal);
  return new KubeError(`${call}: ${why}`, { failure, cause });
}
