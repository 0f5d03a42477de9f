import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { waitWithGrace } from '#base/wait.ts';
import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import type { Call } from '#core/operations.ts';
import type { Admission } from './admission.ts';
import type { ClusterNodes } from './cluster-nodes.ts';
import { handleOrRetryOnNode } from './handle-or-retry-on-node.ts';
import type { Mutations } from './mutations.ts';
import type { Answer, Request, Route } from './route.ts';
import { bodyCheck, type Check, textCheck } from './validation.ts';

export interface RequestContext {
  readonly core: Core;
  readonly clock: Clock;
  readonly log: Log;
  readonly mutations: Mutations;
  readonly admission: Admission;
  readonly nodes?: ClusterNodes | undefined;
  /** Aborted when the server begins to stop; cancels reads. */
  readonly stopping: AbortSignal;
  /** Cancels changes. Aborted later than `stopping`, so that changes in flight can finish. */
  readonly signal: AbortSignal;
}

const readDeadlineMs = 60_000;
const changeDeadlineMs = 120_000;
const keyPattern = /^[!-~]{1,255}$/;

/** The Fastify handler of a route: authenticates and authorizes the caller, validates the request, and handles Idempotency-Key. */
export function createHandler(
  parts: RequestContext,
  route: Route,
): (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply> {
  const { core, clock, mutations } = parts;
  const checkParams = route.params && textCheck(route.params, 'path');
  const checkQuery = route.query === undefined ? noQuery : textCheck(route.query, 'query');
  const checkBody = route.body && bodyCheck(route.body, route.bodyOptional ?? false);

  return async (request, reply) => {
    const principal = await parts.admission.admit(request, route, parts.stopping);
    const input = {
      core,
      principal,
      params: checkParams?.(request.params),
      query: checkQuery(request.query),
      body: checkBody?.(request.body),
      expected: route.conditional ? expectedRevision(request) : undefined,
      nodes: parts.nodes,
    };
    if (route.additionalRight?.isNeeded(input.body))
      await parts.admission.admit(request, route.additionalRight, parts.stopping);
    const log = parts.log.with({ request: request.id });
    const handle = (call: Call): Promise<Answer> => {
      const permit: Request<never, never, never>['permit'] = async (right) => {
        await parts.admission.admit(request, right, call.signal);
      };
      return handleOrRetryOnNode(route, { ...input, permit, call } as unknown as Request<never, never, never>);
    };
    if (route.method === 'GET') {
      using limit = clock.deadline(readDeadlineMs, parts.stopping);
      const read = Promise.resolve(handle({ signal: limit.signal, log, requestId: request.id }));
      return send(reply, await waitWithGrace(read, limit.signal, clock));
    }
    const mutation = {
      principal: principal.id,
      key: idempotencyKey(request),
      // The validated body: the raw one can be nested too deep for JSON.stringify.
      content: () => JSON.stringify([request.method, request.url, input.body, input.expected]),
      detached: prefers(request, 'respond-async'),
      keepAnswer: route.secret !== true,
      forgotten: prefers(request, 'answer-forgotten'),
    };
    using limit = clock.deadline(route.deadlineMs ?? changeDeadlineMs, parts.signal);
    const change = mutations.run(mutation, { signal: limit.signal, log }, handle);
    return send(reply, await waitWithGrace(change, limit.signal, clock));
  };
}

function send(reply: FastifyReply, answer: Answer): FastifyReply {
  for (const [name, value] of Object.entries(answer.headers ?? {})) reply.header(name, value);
  return reply.code(answer.status).send(answer.body);
}

const noQuery: Check = (value) => {
  const [first] = Object.keys(value as object);
  if (first === undefined) return undefined;
  throw new StowageError(`this route takes no query parameters`, {
    code: 'invalid',
    reason: 'request-invalid',
    action: 'Omit the query string.',
  });
};

function expectedRevision(request: FastifyRequest): number | undefined {
  const given = request.headers['if-match'];
  if (given === undefined || given === '*') return undefined;
  const [, revision] = /^"([0-9]{1,15})"$/.exec(given) ?? [];
  if (revision !== undefined) return Number(revision);
  throw new StowageError('If-Match is not a valid entity tag', {
    code: 'invalid',
    reason: 'request-invalid',
    action: 'Send the ETag of the last read of the volume, for example "3".',
  });
}

function idempotencyKey(request: FastifyRequest): string | undefined {
  const key = request.headers['idempotency-key'];
  if (key === undefined || (typeof key === 'string' && keyPattern.test(key))) return key;
  throw new StowageError('the Idempotency-Key is invalid', {
    code: 'invalid',
    reason: 'request-invalid',
    action: 'Use 1 to 255 visible ASCII characters, for example a UUID.',
  });
}

/** RFC 7240: a comma-separated list of preferences. */
function prefers(request: FastifyRequest, what: string): boolean {
  const { prefer } = request.headers;
  if (prefer === undefined) return false;
  return String(prefer)
    .split(',')
    .some((preference) => preference.trim().toLowerCase() === what);
}
