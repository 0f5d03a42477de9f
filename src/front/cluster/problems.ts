import { randomUUID } from 'node:crypto';
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { refusingUnparsable } from '#base/http-parse-errors.ts';
import { harmless } from '#base/terminal-safe.ts';
import { errorCodes, StowageError, stowageError } from '#core/errors.ts';

interface Problem {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** RFC 9457, as everywhere in the API. */
export function problemOf(thrown: unknown, status?: number): Problem {
  const { code, reason, message, action } = stowageError(thrown);
  const requestId = randomUUID();
  const row = errorCodes[code];
  const document = {
    ...{ type: `https://stowage.dev/errors/${reason}`, title: row.title, status: status ?? row.http },
    // What went wrong inside is for the log.
    detail: code === 'internal' ? 'Stowage failed to do this' : harmless(message),
    ...{ code, reason, requestId, action: harmless(action) },
  };
  return {
    status: document.status,
    headers: {
      ...{ 'content-type': 'application/problem+json', 'x-request-id': requestId, 'cache-control': 'no-store' },
      ...(document.status === 401 ? { 'www-authenticate': 'Bearer realm="stowage"' } : {}),
    },
    body: JSON.stringify(document),
  };
}

export function refuse(response: ServerResponse, thrown: unknown, status?: number): void {
  const problem = problemOf(thrown, status);
  response.writeHead(problem.status, problem.headers).end(problem.body);
}

/** On a connection on which nothing else can be answered any more; it ends with it. */
export function refuseBare(socket: Duplex, thrown: unknown): void {
  const { status, headers, body } = problemOf(thrown);
  const all = { ...headers, 'content-length': Buffer.byteLength(body), connection: 'close' };
  const head = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${head.join('')}\r\n${body}`);
}

export const pathUnknown = (): StowageError =>
  new StowageError('there is nothing at this path', {
    code: 'not-found',
    reason: 'path-unknown',
    action: 'Check the address.',
  });

const malformed = (): StowageError =>
  new StowageError('the request is malformed, too large or too slow', {
    code: 'invalid',
    reason: 'request-malformed',
    action: 'Send a well-formed request of HTTP/1.1, with at most 16 KiB of headers, without pausing.',
  });

export const refuseUnparsable = refusingUnparsable((status) => problemOf(malformed(), status));

/** `Expect:` with anything but 100-continue. */
export function refuseExpectation(_request: IncomingMessage, response: ServerResponse): void {
  const unknown = new StowageError('the Expect header asks for something unknown', {
    code: 'invalid',
    reason: 'expectation-unsupported',
    action: 'Leave it out.',
  });
  refuse(response, unknown, 417);
}
