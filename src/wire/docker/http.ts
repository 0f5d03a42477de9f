import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { opened } from '#base/open-stream.ts';
import { DockerError, garbled } from './errors.ts';

export interface Outgoing {
  /** What it is called in messages. */
  readonly call: string;
  readonly method: 'GET' | 'POST' | 'DELETE';
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: object;
  /** Sent as it comes, in the place of a body. */
  readonly tar?: AsyncIterable<Uint8Array>;
  /** It waits for something: with a connection of its own, so that it keeps none from those who do not. */
  readonly alone?: boolean;
  readonly limitMs: number;
  readonly maxBytes: number;
}

export interface Answer {
  readonly status: number;
  /** Empty: there is none. */
  readonly body: string;
}

/** HTTP over a Unix socket, bounded in time, bytes and connections. An answer that says no is an error. */
export interface DockerHttp extends Disposable {
  ask(out: Outgoing, signal: AbortSignal): Promise<Answer>;
  /** The deadline is for the head of the answer; its body then takes as long as it takes, until the signal ends it. */
  open(out: Outgoing, signal: AbortSignal): Promise<IncomingMessage>;
}

const mostSockets = 8;
/** What an engine says of an error is a line or two. */
const maxError = 64 << 10;
const shownError = 1_000;

export function createDockerHttp(socketPath: string, clock: Clock): DockerHttp {
  // What only asks may be sent twice, so it may use a connection that the engine is closing at that very moment; what
  // changes something gets one of its own.
  const kept = new Agent({ keepAlive: true, maxSockets: mostSockets, maxFreeSockets: 1 });
  const fresh = new Agent({ keepAlive: false, maxSockets: mostSockets });

  function start(out: Outgoing, agent: Agent | false, signal: AbortSignal): ClientRequest {
    const query = new URLSearchParams(out.query).toString();
    const headers: Record<string, string> = { host: 'docker', accept: 'application/json' };
    if (out.tar !== undefined) headers['content-type'] = 'application/x-tar';
    if (out.body !== undefined) headers['content-type'] = 'application/json';
    const path = query === '' ? out.path : `${out.path}?${query}`;
    return request({ socketPath, path, method: out.method, headers, agent, signal });
  }

  /** The head of the answer. */
  async function head(out: Outgoing, agent: Agent | false, signal: AbortSignal): Promise<IncomingMessage> {
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    signal.throwIfAborted();
    const sent = start(out, agent, signal);
    // One that waits for a free connection hears of its end only when it gets one.
    const stop = (): void => {
      reject(signal.reason);
      sent.destroy();
    };
    signal.addEventListener('abort', stop, { once: true });
    sent.on('close', () => signal.removeEventListener('abort', stop));
    sent.on('response', resolve);
    sent.on('error', (cause) => reject(Object.assign(cause, { again: sent.reusedSocket })));
    if (out.tar !== undefined) pipeline(out.tar, sent).catch((cause: Error) => sent.destroy(cause));
    else sent.end(out.body === undefined ? undefined : JSON.stringify(out.body));
    return await promise;
  }

  async function attempt(out: Outgoing, signal: AbortSignal): Promise<Answer> {
    const shared = out.method === 'GET' ? kept : fresh;
    const answer = await head(out, out.alone === true ? false : shared, signal);
    return { status: answer.statusCode ?? 0, body: await readAll(answer, out) };
  }

  return {
    ask: async (out, signal) => {
      using limit = clock.deadline(out.limitMs, signal);
      try {
        const answer = await attempt(out, limit.signal).catch((thrown: unknown) => {
          if (out.method !== 'GET' || !hadBeenClosed(thrown) || limit.signal.aborted) throw thrown;
          return attempt(out, limit.signal);
        });
        return checked(out, answer);
      } catch (thrown) {
        throw failureOf(out, thrown, limit.signal);
      }
    },
    open: (out, signal) => {
      const open = async (ended: AbortSignal): Promise<IncomingMessage> => {
        const answer = await head(out, false, ended);
        const status = answer.statusCode ?? 0;
        if (status !== 200) checked(out, { status, body: await readAll(answer, out) });
        return answer;
      };
      const failure = (thrown: unknown, ended: AbortSignal): DockerError => failureOf(out, thrown, ended);
      return opened({ clock, limitMs: out.limitMs, open, failureOf: failure }, signal);
    },
    [Symbol.dispose]: () => {
      kept.destroy();
      fresh.destroy();
    },
  };
}

async function readAll(answer: IncomingMessage, { call, maxBytes }: Outgoing): Promise<string> {
  const most = (answer.statusCode ?? 0) < 400 ? maxBytes : maxError;
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    length += chunk.length;
    // Leaving the loop ends the connection.
    if (length > most) throw garbled(call, `the answer is larger than ${most} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

function checked(out: Outgoing, answer: Answer): Answer {
  const { status, body } = answer;
  if (status >= 200 && status < 300) return answer;
  // Already so: what was asked for is true.
  if (status === 304) return answer;
  const said = messageOf(body);
  throw new DockerError(`${out.call}: ${said === '' ? `status ${status}` : said}`, {
    failure: 'refused',
    status,
    said,
  });
}

function messageOf(body: string): string {
  try {
    const found: unknown = JSON.parse(body);
    if (typeof found === 'object' && found !== null && 'message' in found) return line(String(found.message));
  } catch {
    // Not every error is JSON.
  }
  return line(body);
}

const line = (text: string): string => text.trim().replaceAll(/\s+/g, ' ').slice(0, shownError);

/** A kept connection on which the engine hung up while it was idle. */
const hadBeenClosed = (thrown: unknown): boolean =>
  thrown instanceof Error && 'again' in thrown && thrown.again === true && isBroken(thrown);

const broken = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED', 'ERR_STREAM_PREMATURE_CLOSE']);
const codeOf = (thrown: unknown): string =>
  thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'string' ? thrown.code : '';
const isBroken = (thrown: unknown): boolean => broken.has(codeOf(thrown));

/** The single funnel. */
export function failureOf({ call }: Pick<Outgoing, 'call'>, thrown: unknown, signal: AbortSignal): DockerError {
  if (thrown instanceof DockerError) return thrown;
  if (signal.aborted) {
    const cause: unknown = signal.reason;
    if (cause instanceof DeadlineExceeded)
      return new DockerError(`${call}: ${cause.message}`, { failure: 'deadline', cause });
    return new DockerError(`${call}: cancelled`, { failure: 'canceled', cause });
  }
  if (isBroken(thrown)) return new DockerError(`${call}: the engine hung up`, { failure: 'lost', cause: thrown });
  const why = thrown instanceof Error ? thrown.message : String(thrown);
  if (codeOf(thrown).startsWith('HPE_')) return garbled(call, `the answer is not HTTP (${why})`, thrown);
  const isBefore = thrown instanceof Error && 'syscall' in thrown && thrown.syscall === 'connect';
  return new DockerError(`${call}: ${why}`, { failure: isBefore ? 'unreachable' : 'lost', cause: thrown });
}
