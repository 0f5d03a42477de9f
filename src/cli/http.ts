import { randomUUID } from 'node:crypto';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { AnswerTooLarge } from '#base/http.ts';
import { StowageError } from '#core/errors.ts';
import type { UnreachedJson } from '#front/rest/schemas.ts';
import { apiServerError } from './cluster-connection.ts';
import { addressText, type ServerAddress } from './connection.ts';
import { ConnectionFailure, type OutgoingRequest, readBody, send } from './http-exchange.ts';
import { parseProblem, ServerProblem } from './problem.ts';
import { readEvents, type ServerEvent } from './sse.ts';

export type Query = Readonly<Record<string, string | readonly string[] | undefined>>;

export interface RequestOptions {
  /** Replaces the session's signal, for requests after Ctrl-C. */
  readonly signal?: AbortSignal;
  /** The server answered a moment ago: if it is not there now, it is restarting, so wait for it. */
  readonly waitForRestart?: boolean;
}

export interface ChangeRequest extends RequestOptions {
  readonly method: 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly body?: unknown;
  readonly ifRevision?: number | undefined;
  /** Send `Prefer: respond-async`: the answer is an operation to follow. */
  readonly background?: boolean;
  /** Long work: only a --timeout of the user applies, not the default one. */
  readonly long?: boolean;
}

export interface ServerAnswer {
  readonly status: number;
  /** Undefined: no body. */
  readonly body: unknown;
}

export interface Client {
  get<T>(path: string, query?: Query, how?: RequestOptions): Promise<T>;
  /** Every page of a list. */
  all<T>(path: string, query?: Query): Promise<T[]>;
  /** The same for a list over several stores. */
  listOverStores<T>(path: string, query?: Query): Promise<MultiStoreList<T>>;
  change(change: ChangeRequest): Promise<ServerAnswer>;
  /** The events after `last`; ends with the connection. */
  events(last: string | undefined, signal: AbortSignal): AsyncGenerator<ServerEvent>;
}

export interface MultiStoreList<T> {
  readonly items: readonly T[];
  /** The stores that did not answer. */
  readonly unanswered: readonly string[];
  /** In a cluster: the nodes that could not be reached. */
  readonly unreached: readonly UnreachedJson[];
}

interface Page<T> extends Partial<MultiStoreList<T>> {
  readonly next?: string | null;
}

export interface Deadline {
  readonly ms: number;
  /** Set by --timeout, so it applies to long work too. */
  readonly explicit: boolean;
}

/** How long to retry after the server went away during a request: longer than a restart takes. */
const maxRestartMs = 10_000;

export function createClient(
  findAddress: () => Promise<ServerAddress>,
  clock: Clock,
  signal: AbortSignal,
  deadline: Deadline,
  /** Shows the user that the program waits, until disposed. */
  showWaiting: () => Disposable,
): Client {
  async function sendRequest(
    out: OutgoingRequest,
    how: RequestOptions & { readonly long?: boolean },
  ): Promise<ServerAnswer> {
    const where = await findAddress();
    const ms = how.long === true && !deadline.explicit ? 2 ** 31 - 1 : deadline.ms;
    using limit = clock.deadline(ms, how.signal ?? signal);
    using _ = showWaiting();
    let giveUpAt = how.waitForRestart === true ? clock.now() + maxRestartMs : undefined;
    for (let pause = 50; ; pause = Math.min(pause * 2, 500)) {
      let answer: ServerAnswer | undefined;
      try {
        answer = await exchange(where, out, limit.signal);
      } catch (thrown) {
        if (limit.signal.aborted) throw interruptedError(limit.signal.reason, where, out.method);
        if (!(thrown instanceof ConnectionFailure)) throw invalidAnswerError(thrown, where);
        if (giveUpAt === undefined && !thrown.connected) throw unreachableError(where, thrown);
        giveUpAt ??= clock.now() + maxRestartMs;
        if (clock.now() >= giveUpAt)
          throw thrown.connected ? connectionBrokenError(where, thrown) : unreachableError(where, thrown);
      }
      if (isRestarting(answer)) giveUpAt ??= clock.now() + maxRestartMs;
      const shouldRetry =
        giveUpAt !== undefined && clock.now() < giveUpAt && (isRestarting(answer) || isBusy(answer, out.method));
      if (answer !== undefined && !shouldRetry) return requireSuccess(answer, where);
      await clock.sleep(pause, limit.signal).catch(() => {
        throw interruptedError(limit.signal.reason, where, out.method);
      });
    }
  }

  async function listOverStores<T>(path: string, query: Query = {}): Promise<MultiStoreList<T>> {
    const items: T[] = [];
    const unanswered = new Set<string>();
    const unreached: UnreachedJson[] = [];
    const seen = new Set<string>();
    for (let after: string | undefined; ; ) {
      const page = await get<Page<T>>(path, { ...query, after });
      if (!Array.isArray(page?.items)) throw invalidAnswerError('a list without items', await findAddress());
      items.push(...page.items);
      // Servers of earlier versions leave this out.
      for (const store of page.unanswered ?? []) unanswered.add(store);
      unreached.push(...(page.unreached ?? []));
      after = page.next ?? undefined;
      if (after === undefined) return { items, unanswered: [...unanswered], unreached };
      // A faulty server must not make this loop endless.
      if (seen.has(after)) throw invalidAnswerError('the same page twice', await findAddress());
      seen.add(after);
    }
  }

  async function get<T>(path: string, query?: Query, how: RequestOptions = {}): Promise<T> {
    return (await sendRequest({ method: 'GET', path: path + queryString(query) }, how)).body as T;
  }

  return {
    get,
    all: async <T>(path: string, query?: Query) => [...(await listOverStores<T>(path, query)).items],
    listOverStores,
    change: (change) => {
      const headers: Record<string, string> = { 'idempotency-key': randomUUID() };
      if (change.ifRevision !== undefined) headers['if-match'] = `"${change.ifRevision}"`;
      if (change.background === true) headers['prefer'] = 'respond-async';
      const body = change.body === undefined ? {} : { body: JSON.stringify(change.body) };
      return sendRequest({ method: change.method, path: change.path, headers, ...body }, change);
    },
    events: async function* (last, until) {
      const where = await findAddress();
      try {
        yield* streamEvents(where, last, until);
      } catch (cause) {
        if (until.aborted) throw interruptedError(until.reason, where, 'GET');
        if (cause instanceof RangeError) throw invalidAnswerError(cause.message, where);
        if (cause instanceof StowageError || cause instanceof ServerProblem) throw cause;
        const failure =
          cause instanceof ConnectionFailure ? cause : new ConnectionFailure('the connection failed', { cause });
        throw failure.connected ? connectionBrokenError(where, failure) : unreachableError(where, failure);
      }
    },
  };
}

async function* streamEvents(
  where: ServerAddress,
  last: string | undefined,
  until: AbortSignal,
): AsyncGenerator<ServerEvent> {
  const headers: Record<string, string> = { accept: 'text/event-stream' };
  if (last !== undefined) headers['last-event-id'] = last;
  const answer = await send(where, { method: 'GET', path: '/v1/events', headers }, until);
  const status = answer.statusCode ?? 0;
  if (status !== 200) throw problemFromAnswer({ status, body: parse(await readBody(answer, until)) }, where);
  yield* readEvents(answer);
}

function queryString(query: Query = {}): string {
  const pairs = Object.entries(query).flatMap(([key, value]) =>
    (value === undefined ? [] : typeof value === 'string' ? [value] : value).map((one): [string, string] => [key, one]),
  );
  return pairs.length === 0 ? '' : `?${new URLSearchParams(pairs)}`;
}

async function exchange(where: ServerAddress, out: OutgoingRequest, signal: AbortSignal): Promise<ServerAnswer> {
  const answer = await send(where, out, signal);
  const text = await readBody(answer, signal);
  return { status: answer.statusCode ?? 0, body: text === '' ? undefined : parse(text) };
}

/** The server answered that it is stopping or starting. */
const isRestarting = (answer: ServerAnswer | undefined): boolean =>
  ['stopping', 'starting'].includes(parseProblem(answer?.body)?.problem.reason ?? '');

/** After a broken connection, the first request may still run on the server under the same key. */
const isBusy = (answer: ServerAnswer | undefined, method: string): boolean =>
  method !== 'GET' && parseProblem(answer?.body)?.problem.code === 'busy';

const unparsed = Symbol('not JSON');
function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return unparsed;
  }
}

function requireSuccess(answer: ServerAnswer, where: ServerAddress): ServerAnswer {
  const ok = answer.status >= 200 && answer.status < 300;
  if (ok && answer.body !== unparsed) return answer;
  throw ok ? invalidAnswerError(`status ${answer.status}`, where) : problemFromAnswer(answer, where);
}

function problemFromAnswer({ status, body }: ServerAnswer, where: ServerAddress): Error {
  const problem = parseProblem(body) ?? (where.kind === 'cluster' ? apiServerError(status, body, where) : undefined);
  return problem ?? invalidAnswerError(`status ${status}`, where);
}

function invalidAnswerError(cause: unknown, where: ServerAddress): StowageError {
  if (cause instanceof StowageError) return cause;
  const why =
    cause instanceof AnswerTooLarge ? cause.message : typeof cause === 'string' ? cause : 'malformed response';
  return new StowageError(`the response from ${addressText(where)} is not a valid Stowage response (${why})`, {
    code: 'internal',
    reason: 'answer-unreadable',
    action:
      'Check that the address belongs to a Stowage server, and that the server and this program have the same version.',
    cause,
  });
}

function interruptedError(reason: unknown, where: ServerAddress, method: string): StowageError {
  if (reason instanceof DeadlineExceeded) {
    return new StowageError(`no response from ${addressText(where)} within ${reason.ms / 1000} s`, {
      code: 'deadline',
      reason: 'server-no-answer',
      action: 'List the operations of the server: stowage operations. To wait longer, add --timeout 5m',
      cause: reason,
    });
  }
  return new StowageError('interrupted', {
    code: 'canceled',
    reason: 'interrupted',
    action: method === 'GET' ? '' : 'The server may have completed the request; check: stowage operations',
    cause: reason,
  });
}

function connectionBrokenError(where: ServerAddress, cause: ConnectionFailure): StowageError {
  return new StowageError(`lost the connection to ${addressText(where)} before the response arrived`, {
    code: 'unavailable',
    reason: 'connection-broken',
    action: 'Check the log and the operations of the server (stowage operations), then repeat the command',
    cause,
  });
}

function unreachableError(where: ServerAddress, cause: ConnectionFailure): StowageError {
  if (cause.code === 'EACCES' || cause.code === 'EPERM') {
    return new StowageError(`permission denied while connecting to ${addressText(where)}`, {
      code: 'denied',
      reason: 'socket-denied',
      action: 'Run the command as the user who started the server, or use --url with a token.',
      cause,
    });
  }
  if (where.kind === 'cluster')
    return new StowageError(`cannot reach the API server at ${where.server.origin} (${cause.code})`, {
      code: 'unavailable',
      reason: 'kubernetes-unreachable',
      action: 'Check the connection: kubectl version. Select another cluster with --context NAME.',
      cause,
    });
  const other = where.kind === 'socket' ? '--socket or STOWAGE_SOCKET' : '--url or STOWAGE_URL';
  return new StowageError(`cannot connect to a Stowage server at ${addressText(where)} (${cause.code})`, {
    code: 'unavailable',
    reason: 'server-not-running',
    action: `Start the server with: stowage up. If it listens elsewhere, set ${other}.`,
    cause,
  });
}
