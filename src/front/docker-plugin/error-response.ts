import type { IncomingMessage, ServerResponse } from 'node:http';
import { createClientErrorHandler } from '#base/http-parse-errors.ts';
import { terminalSafe } from '#base/terminal-safe.ts';
import { errorCodes } from '#core/error-codes.ts';
import { redactForUser } from '#core/error-disclosure.ts';
import { StowageError, stowageError } from '#core/errors.ts';

/** Docker requests this version; neither engine checks the answer's type. */
export const contentType = 'application/vnd.docker.plugins.v1.2+json';

/**
 * The answer to a failed call. The status is never 200: Podman looks for errors only in answers with another status. Apart from that, neither
 * engine looks at the status. Docker shows the text after the method's name, Podman after method, volume and plugin.
 */
export interface ErrorResponse {
  readonly status: number;
  readonly text: string;
  /** The unredacted message and action, for the log. */
  readonly fullText: string;
  /** An internal error of Stowage. */
  readonly internal: boolean;
}

/** Where an administrator finds the details. */
const inLog = 'in the log of Stowage on this host.';

export function errorResponseFrom(thrown: unknown): ErrorResponse {
  if (thrown instanceof HttpError)
    return { status: thrown.status, text: thrown.message, internal: false, fullText: thrown.message };
  const error = stowageError(thrown);
  const { code } = error;
  const status = errorCodes[code].http;
  // Users of containers must not learn the addresses and paths of servers.
  const { message, action } = redactForUser(error, inLog);
  // The details of an internal error belong in the log only.
  if (code === 'internal')
    return {
      status,
      text: 'internal error of Stowage. Find the cause in the log of the server, and report it.',
      internal: true,
      fullText: error.message,
    };
  return { status, text: oneLine(message, action), internal: false, fullText: oneLine(error.message, error.action) };
}

/** Message and action as two sentences. */
export function oneLine(message: string, action: string): string {
  const sentence = message.replace(/[.\s]+$/, '');
  return terminalSafe(`${sentence}. ${action}`.trim());
}

/** An error of the HTTP layer, before any method is called. */
class HttpError extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const httpMessages: Readonly<Record<number, string>> = {
  400: 'the request is malformed. Send a JSON object with POST.',
  404: 'unknown method. This volume plugin supports Plugin.Activate and VolumeDriver.*.',
  405: 'method not allowed. Use POST.',
  408: 'the request timed out. Send the whole request without pauses.',
  413: 'the request is too large. Send at most 64 KiB.',
  415: 'the content type of the request is not supported. Send it as application/json.',
  417: 'the Expect header is not supported. Omit the header.',
  431: 'the headers are too large. Send at most 16 KiB.',
};

export const httpError = (status: number): Error =>
  new HttpError(status, httpMessages[status] ?? httpMessages[400] ?? '');

export function overloadedError(): StowageError {
  return new StowageError('too many calls are in flight', {
    code: 'busy',
    reason: 'plugin-overloaded',
    action: 'Try again in a moment.',
  });
}

export const refuseUnparsable = createClientErrorHandler((found) => {
  const { status, text } = errorResponseFrom(httpError(found));
  return { status, headers: { 'content-type': contentType }, body: JSON.stringify({ Err: text }) };
});

/** `Expect:` with anything but 100-continue. */
export function refuseExpectation(_request: IncomingMessage, response: ServerResponse): void {
  const { status, text } = errorResponseFrom(httpError(417));
  response.writeHead(status, { 'content-type': contentType, connection: 'close' }).end(JSON.stringify({ Err: text }));
}
