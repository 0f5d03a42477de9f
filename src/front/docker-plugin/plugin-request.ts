import type { IncomingMessage } from 'node:http';
import { asJsonObject, jsonIn } from '#base/json.ts';
import { StowageError } from '#core/errors.ts';
import { httpError } from './error-response.ts';

/** The JSON object that an engine sent. */
export type PluginRequest = Readonly<Record<string, unknown>>;

const maxBodyBytes = 64 * 1024;

/** Docker sends no content type at all, Podman application/vnd.docker.plugins.v1.1+json. */
const acceptedContentType = /^application\/(?:json|vnd\.docker\.plugins\.[\w.-]+\+json)$/;

/** Rejects a body that is too large without reading all of it. */
export async function readPluginRequest(request: IncomingMessage): Promise<PluginRequest> {
  const type = request.headers['content-type']?.split(';')[0]?.trim().toLowerCase();
  if (type !== undefined && type !== '' && !acceptedContentType.test(type)) throw httpError(415);
  if (Number(request.headers['content-length'] ?? 0) > maxBodyBytes) throw httpError(413);
  return parseBody(await textOf(request));
}

function textOf(request: IncomingMessage): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const chunks: Buffer[] = [];
  let length = 0;
  request.on('data', (chunk: Buffer) => {
    length += chunk.length;
    if (length > maxBodyBytes) reject(httpError(413));
    else chunks.push(chunk);
  });
  request.once('end', () => resolve(Buffer.concat(chunks).toString('utf8')));
  // The engine hung up or took too long, so it does not read the answer.
  request.once('error', () => reject(httpError(400)));
  request.once('close', () => reject(httpError(400)));
  return promise;
}

/** Engines send an empty body to methods without arguments. */
function parseBody(text: string): PluginRequest {
  const value = text.trim() === '' ? {} : jsonIn(text);
  const request = asJsonObject(value);
  if (request === undefined) throw httpError(400);
  return request;
}

function invalidRequest(message: string): StowageError {
  return new StowageError(message, {
    code: 'invalid',
    reason: 'plugin-request-invalid',
    // Docker sends an empty body when it retries a call after its connection was lost.
    action: 'Repeat the command. If the error persists, the engine and Stowage use incompatible protocols.',
  });
}

export function requiredText(message: PluginRequest, field: string): string {
  const value = Object.hasOwn(message, field) ? message[field] : undefined;
  if (typeof value === 'string' && value !== '' && value.length <= 512) return value;
  if (typeof value === 'string' && value !== '') throw invalidRequest(`${field} is too long`);
  throw invalidRequest(value === undefined ? `the request has no ${field}` : `${field} is not a string`);
}

/** A map of strings; a missing field or null is an empty map. */
export function textMap(message: PluginRequest, field: string): ReadonlyMap<string, string> {
  const value = Object.hasOwn(message, field) ? message[field] : undefined;
  if (value === undefined || value === null) return new Map();
  if (typeof value !== 'object' || Array.isArray(value)) throw invalidRequest(`${field} is not a map`);
  return new Map(
    Object.entries(value).map(([key, one]) => {
      if (typeof one === 'string') return [key, one];
      throw invalidRequest(`${field} has a value that is not a string`);
    }),
  );
}
