import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { createClientErrorHandler } from '#base/http-parse-errors.ts';
import type { Log } from '#base/log.ts';
import { problemType } from '#base/problem.ts';
import { StowageError } from '#core/errors.ts';
import { commonHeaders, requestIdFrom } from './headers.ts';
import type { Principal } from './principal.ts';
import { httpFailure, problemFrom } from './problems.ts';
import type { ProblemJson } from './schemas.ts';

function send(reply: FastifyReply, problem: ProblemJson): FastifyReply {
  if (problem.status === 401) reply.header('www-authenticate', 'Bearer realm="stowage"');
  return reply.code(problem.status).type(problemType).send(JSON.stringify(problem));
}

/** Makes every error a problem document: errors of handlers, errors of Fastify, and unknown paths. */
export function setErrorHandlers(
  app: FastifyInstance,
  log: Log,
  principalOf: (request: FastifyRequest) => Principal | undefined,
): void {
  app.setErrorHandler((thrown, request, reply) => {
    const problem = problemFrom(thrown, request.id, principalOf(request));
    const fields = { request: request.id, url: request.url };
    if (problem.code === 'internal') log.error('request failed', { ...fields, error: thrown });
    // The details that the answer hides, for the administrator.
    else if (thrown instanceof StowageError && thrown.action !== problem.action)
      log.warn('request failed', { ...fields, reason: thrown.reason, why: thrown.message, action: thrown.action });
    return send(reply, problem);
  });
  app.setNotFoundHandler((request, reply) =>
    send(
      reply,
      problemFrom(
        new StowageError('unknown path', {
          code: 'not-found',
          reason: 'path-unknown',
          action: 'See /openapi.json for the supported paths.',
        }),
        request.id,
      ),
    ),
  );
}

/** For URLs that Fastify's router can't parse: hooks and error handlers do not run for them. */
export function answerUnreadableUrl(error: Error, request: FastifyRequest, reply: FastifyReply): void {
  send(reply.headers(commonHeaders(request.id)), problemFrom(error, request.id));
}

/** Answers 405 with Allow instead of a misleading 404, before the body is read. */
export function refuseOtherMethods(app: FastifyInstance, allowedAt: ReadonlyMap<string, ReadonlySet<string>>): void {
  const known = [...allowedAt].map(([path, allowed]) => ({
    pattern: new RegExp(`^${path.replaceAll('.', '\\.').replaceAll(/:\w+/g, '[^/]+')}$`),
    allow: [...allowed].sort().join(', '),
  }));
  app.addHook('onRequest', async (request, reply) => {
    if (!request.is404) return;
    const path = request.url.replace(/[?#;].*$/s, '');
    const found = known.find(({ pattern }) => pattern.test(path));
    if (found !== undefined) await refuseMethod(request, reply, found.allow);
  });
}

function refuseMethod(request: FastifyRequest, reply: FastifyReply, allow: string): FastifyReply {
  const failure = new StowageError(`${request.method} is not allowed at this path`, {
    code: 'invalid',
    reason: 'method-not-allowed',
    action: `Use ${allow}.`,
  });
  return send(reply.header('allow', allow), { ...problemFrom(failure, request.id), status: 405 });
}

export const refuseUnparsable = createClientErrorHandler((found) => {
  const problem = problemFrom(httpFailure(found), randomUUID());
  const headers = { ...commonHeaders(problem.requestId), 'content-type': problemType };
  return { status: problem.status, headers, body: JSON.stringify(problem) };
});

/** `Expect:` with anything but 100-continue. */
export function refuseExpectation(request: IncomingMessage, response: ServerResponse): void {
  const problem = problemFrom(httpFailure(417), requestIdFrom(request.headers));
  const headers = { ...commonHeaders(problem.requestId), 'content-type': problemType };
  response.writeHead(problem.status, headers).end(JSON.stringify(problem));
}
