import type { TObject } from 'typebox';
import { problemType } from '#base/problem.ts';
import { ruleText } from './access.ts';
import type { Route } from './route.ts';
import * as bodies from './schema-bodies.ts';
import * as schemas from './schemas.ts';

const problemAnswer = {
  description: 'The error, with an action for the user',
  content: { [problemType]: { schema: schemas.problem } },
};

function parametersOf(schema: TObject | undefined, where: 'path' | 'query'): object[] {
  const required = new Set<string>(schema?.required);
  return Object.entries(schema?.properties ?? {}).map(([name, property]) => ({
    name,
    in: where,
    required: where === 'path' || required.has(name),
    schema: property,
    ...(typeof property === 'object' && 'description' in property && { description: property.description }),
  }));
}

const header = (name: string, description: string, schema: object): object => ({
  name,
  in: 'header',
  required: false,
  description,
  schema,
});

function headersOf(route: Route): object[] {
  if (route.method === 'GET') return [];
  return [
    header('Idempotency-Key', 'A request with the same key returns the same response for a day', {
      type: 'string',
      minLength: 1,
      maxLength: 255,
      pattern: '^[!-~]+$',
    }),
    ...(route.operation
      ? [
          header('Prefer', '`respond-async`: respond with 202 and an operation as soon as the operation is recorded', {
            type: 'string',
          }),
        ]
      : []),
    ...(route.conditional
      ? [
          header('If-Match', 'Only if the volume is at this revision', {
            type: 'string',
            pattern: '^(\\*|"[0-9]{1,15}")$',
          }),
        ]
      : []),
  ];
}

function operationOf(route: Route): object {
  const { status, description, schema } = route.success;
  return {
    operationId: route.id,
    tags: [route.tag],
    summary: route.summary,
    'x-stowage-role': route.role,
    description: `Role: ${route.role}. ${'instead' in route.access ? 'Not in a cluster.' : `In a cluster: ${ruleText(route.access)}.`}`,
    parameters: [...parametersOf(route.params, 'path'), ...parametersOf(route.query, 'query'), ...headersOf(route)],
    ...(route.body && {
      requestBody: { required: !route.bodyOptional, content: { 'application/json': { schema: route.body } } },
    }),
    responses: {
      [status]: { description, ...(schema && { content: { 'application/json': { schema } } }) },
      ...(route.operation && {
        202: {
          description: 'In progress, after Prefer: respond-async',
          content: { 'application/json': { schema: schemas.operation } },
        },
      }),
      default: problemAnswer,
    },
  };
}

const text = (description: string): object => ({
  description,
  content: { 'text/plain': { schema: { type: 'string' } } },
});

const publicPath = (operationId: string, summary: string): object => ({
  get: {
    operationId,
    tags: ['health'],
    summary,
    security: [],
    responses: { 200: text('Yes'), default: problemAnswer },
  },
});

/** The paths that are not in the route table. */
const otherPaths = {
  '/v1/events': {
    get: {
      operationId: 'followEvents',
      tags: ['events'],
      summary: 'Changes and progress as server-sent events',
      description:
        'Resumes after Last-Event-ID; sends `reset` if too many events were missed. Sends a heartbeat every 15 s.',
      parameters: [header('Last-Event-ID', 'The position to resume from', { type: 'string', maxLength: 100 })],
      responses: {
        200: { description: 'A stream', content: { 'text/event-stream': { schema: schemas.event } } },
        default: problemAnswer,
      },
    },
  },
  '/healthz': publicPath('isAlive', 'Is the process alive?'),
  '/readyz': publicPath('isReady', 'Can it serve requests?'),
  '/metrics': {
    get: {
      operationId: 'getMetrics',
      tags: ['health'],
      summary: 'Prometheus metrics',
      responses: { 200: text('The metrics'), default: problemAnswer },
    },
  },
  '/openapi.json': {
    get: {
      operationId: 'getOpenApi',
      tags: ['server'],
      summary: 'This document',
      security: [],
      responses: {
        200: { description: 'OpenAPI 3.1', content: { 'application/json': { schema: { type: 'object' } } } },
        default: problemAnswer,
      },
    },
  },
};

/** The OpenAPI 3.1 document, generated from the routes. */
export function openApi(routes: readonly Route[], version: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    paths[route.path] = { ...paths[route.path], [route.method.toLowerCase()]: operationOf(route) };
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Stowage',
      version,
      description:
        'Storage for containers with nothing installed on the host. Errors are RFC 9457 problems with a `code` and an `action`.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/' }],
    security: [{ bearer: [] }],
    paths: withReferences({ ...paths, ...otherPaths }),
    components: {
      schemas: Object.fromEntries([...names].map(([schema, name]) => [name, expandSchema(schema)])),
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer' } },
    },
  };
}

const isSchema = (value: unknown): value is object => typeof value === 'object' && value !== null;

/** The names of the exported schemas, which become components of the document. */
const names = new Map<object, string>(
  [...Object.entries(schemas), ...Object.entries(bodies)].flatMap(([name, schema]: [string, unknown]) =>
    isSchema(schema) ? [[schema, `${name.charAt(0).toUpperCase()}${name.slice(1)}`] as const] : [],
  ),
);

function withReferences(value: unknown): unknown {
  if (!isSchema(value)) return value;
  const name = names.get(value);
  return name === undefined ? expandSchema(value) : { $ref: `#/components/schemas/${name}` };
}

function expandSchema(value: object): unknown {
  if (Array.isArray(value)) return value.map(withReferences);
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, withReferences(part)]));
}
