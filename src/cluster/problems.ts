import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { createClientErrorHandler, endWithResponse, type RawResponse } from '#base/http-parse-errors.ts';
import { problemDocument, problemType } from '#base/problem.ts';
import { errorCodes } from '#core/error-codes.ts';
import { StowageError, stowageError } from '#core/errors.ts';

/** A problem document (RFC 9457), as everywhere in the API. */
export function problemOf(thrown: unknown, status?: number): RawResponse {
  const { code, reason, message, action } = stowageError(thrown);
  const requestId = randomUUID();
  const { title, http } = errorCodes[code];
  const document = problemDocument({
    error: { code, reason, message, action },
    title,
    status: status ?? http,
    requestId,
  });
  return {
    status: document.status,
    headers: {
      'content-type': problemType,
      'x-request-id': requestId,
      'cache-control': 'no-store',
      ...(document.status === 401 ? { 'www-authenticate': 'Bearer realm="stowage"' } : {}),
    },
    body: JSON.stringify(document),
  };
}

export function refuse(response: ServerResponse, thrown: unknown, status?: number): void {
  const problem = problemOf(thrown, status);
  response.writeHead(problem.status, problem.headers).end(problem.body);
}

/** Answers on a raw socket, and closes the connection. */
export function refuseOnSocket(socket: Duplex, thrown: unknown): void {
  endWithResponse(socket, problemOf(thrown));
}

export const pathUnknown = (): StowageError =>
  new StowageError('unknown path', {
    code: 'not-found',
    reason: 'path-unknown',
    action: 'Check the address.',
  });

const requestMalformed = (): StowageError =>
  new StowageError('the request is malformed, too large or too slow', {
    code: 'invalid',
    reason: 'request-malformed',
    action: 'Send a well-formed request of HTTP/1.1, with at most 16 KiB of headers, without pausing.',
  });

export const refuseUnparsable = createClientErrorHandler((status) => problemOf(requestMalformed(), status));

/** Refuses `Expect:` with anything but 100-continue. */
export function refuseExpectation(_request: IncomingMessage, response: ServerResponse): void {
  const unsupported = new StowageError('the Expect header has an unknown value', {
    code: 'invalid',
    reason: 'expectation-unsupported',
    action: 'Omit the header.',
  });
  refuse(response, unsupported, 417);
}
