import { problemDocument } from '#base/problem.ts';
import { errorCodes } from '#core/error-codes.ts';
import { type CodeAndReason, StowageError, stowageError } from '#core/errors.ts';
import type { Principal } from './principal.ts';
import { redactedError } from './redaction.ts';
import type { ProblemJson } from './schemas.ts';

/** Converts an error to an RFC 9457 problem. The status is that of the error code, except for errors of the HTTP layer. */
export function problemFrom(thrown: unknown, requestId: string, principal?: Principal): ProblemJson {
  const error = httpProblem(thrown) ?? { failure: stowageError(thrown), status: undefined };
  const { code, reason } = error.failure;
  const { action, message } = redactedError(
    principal,
    error.failure,
    `under request ${requestId} in the server's log.`,
  );
  const { title, http } = errorCodes[code];
  const shownAction =
    code === 'internal' ? `Find request ${requestId} in the server's log, and report the error.` : action;
  return problemDocument({
    error: { code, reason, message, action: shownAction },
    title,
    status: error.status ?? http,
    requestId,
  });
}

/** Errors that Fastify throws before a handler runs. */
function httpProblem(thrown: unknown): { failure: StowageError; status: number } | undefined {
  if (!(thrown instanceof Error) || !('statusCode' in thrown)) return undefined;
  const status = Number(thrown.statusCode);
  const known = httpProblems[status];
  if (known === undefined) return undefined;
  const { message, ...about } = known;
  return { failure: new StowageError(message, { ...about, cause: thrown }), status };
}

/** An error like those of Fastify. */
export function httpFailure(statusCode: number): Error {
  return Object.assign(new Error(`HTTP ${statusCode}`), { statusCode });
}

type HttpProblem = CodeAndReason & { readonly message: string; readonly action: string };

const httpProblems: Readonly<Record<number, HttpProblem>> = {
  400: {
    code: 'invalid',
    reason: 'request-malformed',
    message: 'malformed request: invalid URL, headers or JSON',
    action: 'Send a valid URL and a valid JSON body, as described in /openapi.json.',
  },
  408: {
    code: 'deadline',
    reason: 'request-slow',
    message: 'the request timed out',
    action: 'Send the whole request without pauses.',
  },
  413: {
    code: 'invalid',
    reason: 'body-too-large',
    message: 'the body is too large',
    action: 'Send at most 64 KiB.',
  },
  414: {
    code: 'invalid',
    reason: 'path-too-long',
    message: 'the path is too long',
    action: 'Shorten the path; names have at most 128 characters.',
  },
  415: {
    code: 'invalid',
    reason: 'content-type-unsupported',
    message: 'the content type of the body is not supported',
    action: 'Send the body as application/json.',
  },
  417: {
    code: 'invalid',
    reason: 'expectation-unsupported',
    message: 'the Expect header is not supported',
    action: 'Omit the header.',
  },
  431: {
    code: 'invalid',
    reason: 'headers-too-large',
    message: 'the headers are too large',
    action: 'Send at most 16 KiB of headers.',
  },
};
