import { Agent, type IncomingMessage } from 'node:http';
import type { Clock } from '#base/clock.ts';
import { httpFailure, pathWithQuery, readText, send, socketTarget } from '#base/http.ts';
import { asJsonObject, jsonIn } from '#base/json.ts';
import { openStream } from '#base/open-stream.ts';
import { DockerError } from './errors.ts';

export interface EngineRequest {
  /** The name of the call in error messages. */
  readonly call: string;
  readonly method: 'GET' | 'POST' | 'DELETE';
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: object;
  /** Streamed as the body. */
  readonly tar?: AsyncIterable<Uint8Array>;
  /** For calls that wait: uses a separate connection, so that others do not have to wait for one. */
  readonly ownConnection?: boolean;
  readonly timeoutMs: number;
  readonly maxBytes: number;
}

export interface EngineResponse {
  readonly status: number;
  /** Empty if there is none. */
  readonly body: string;
}

/** HTTP over a Unix socket with limits on time, bytes and connections. Error statuses become exceptions. */
export interface DockerHttp extends Disposable {
  request(request: EngineRequest, signal: AbortSignal): Promise<EngineResponse>;
  /** The deadline covers the response header only. The body lasts until the signal ends it. */
  openStream(request: EngineRequest, signal: AbortSignal): Promise<IncomingMessage>;
}

const maxSockets = 8;
/** An engine's error message is a line or two. */
const maxErrorBytes = 64 << 10;
const maxMessageLength = 1_000;

export function createDockerHttp(socketPath: string, clock: Clock): DockerHttp {
  const target = socketTarget(socketPath);
  // A GET can be repeated, so it may use an idle connection, which the engine may be closing. Other calls get new connections.
  const keepAliveAgent = new Agent({ keepAlive: true, maxSockets: maxSockets, maxFreeSockets: 1 });
  const singleUseAgent = new Agent({ keepAlive: false, maxSockets: maxSockets });

  function sendRequest(request: EngineRequest, agent: Agent | false, signal: AbortSignal): Promise<IncomingMessage> {
    const { method, tar: stream } = request;
    const headers: Record<string, string> = { host: 'docker', accept: 'application/json' };
    if (stream !== undefined) headers['content-type'] = 'application/x-tar';
    if (request.body !== undefined) headers['content-type'] = 'application/json';
    const body = request.body === undefined ? undefined : JSON.stringify(request.body);
    return send(
      target,
      { method, path: pathWithQuery(request.path, request.query), headers, body, stream, agent },
      signal,
    );
  }

  async function readResponse(head: IncomingMessage, { maxBytes }: EngineRequest): Promise<EngineResponse> {
    const { statusCode: status = 0 } = head;
    return { status, body: await readText(head, status < 400 ? maxBytes : maxErrorBytes) };
  }

  return {
    request: async (request, signal) => {
      using limit = clock.deadline(request.timeoutMs, signal);
      const shared = request.method === 'GET' ? keepAliveAgent : singleUseAgent;
      try {
        return requireSuccess(
          request,
          await readResponse(
            await sendRequest(request, request.ownConnection === true ? false : shared, limit.signal),
            request,
          ),
        );
      } catch (thrown) {
        throw failureOf(request, thrown, limit.signal);
      }
    },
    openStream: (request, signal) => {
      const open = async (ended: AbortSignal): Promise<IncomingMessage> => {
        const answer = await sendRequest(request, false, ended);
        if (answer.statusCode !== 200) requireSuccess(request, await readResponse(answer, request));
        return answer;
      };
      const failure = (thrown: unknown, ended: AbortSignal): DockerError => failureOf(request, thrown, ended);
      return openStream({ clock, limitMs: request.timeoutMs, open, failureOf: failure }, signal);
    },
    [Symbol.dispose]: () => {
      keepAliveAgent.destroy();
      singleUseAgent.destroy();
    },
  };
}

function requireSuccess(request: EngineRequest, answer: EngineResponse): EngineResponse {
  const { status, body } = answer;
  if (status >= 200 && status < 300) return answer;
  // 304: the requested state is already there.
  if (status === 304) return answer;
  const engineMessage = messageOf(body);
  throw new DockerError(`${request.call}: ${engineMessage === '' ? `status ${status}` : engineMessage}`, {
    failure: 'refused',
    status,
    engineMessage,
  });
}

function messageOf(body: string): string {
  // Not every error is JSON.
  const found = asJsonObject(jsonIn(body));
  return oneLine(found !== undefined && 'message' in found ? String(found['message']) : body);
}

const oneLine = (text: string): string => text.trim().replaceAll(/\s+/g, ' ').slice(0, maxMessageLength);

/** All failures become DockerErrors here. */
export function failureOf({ call }: Pick<EngineRequest, 'call'>, thrown: unknown, signal: AbortSignal): DockerError {
  if (thrown instanceof DockerError) return thrown;
  const { failure, why, cause } = httpFailure(thrown, 'the engine', signal);
  return new DockerError(`${call}: ${why}`, { failure, cause });
}
