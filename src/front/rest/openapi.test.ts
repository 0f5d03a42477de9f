import { beforeAll, expect, test } from 'vitest';
import { startServer } from '#testing/server.ts';

// biome-ignore lint/suspicious/noExplicitAny: a JSON document of any shape
let document: any;

beforeAll(async () => {
  await using server = await startServer({ listen: 'none' });
  const { status, headers, body } = await server.admin.get('/openapi.json');
  expect({ status, type: headers['content-type'] }).toEqual({ status: 200, type: 'application/json; charset=utf-8' });
  document = body;
});

/** Every nested value, with its path. */
function* walk(value: unknown, path = ''): Generator<[path: string, value: unknown]> {
  yield [path, value];
  if (typeof value !== 'object' || value === null) return;
  for (const [key, part] of Object.entries(value)) yield* walk(part, `${path}/${key}`);
}

test('every reference leads to a schema, and every schema is used', () => {
  const used = new Set<string>();
  for (const [path, value] of walk(document)) if (path.endsWith('/$ref')) used.add(String(value));
  const known = Object.keys(document.components.schemas).map((name) => `#/components/schemas/${name}`);
  expect([...used].filter((reference) => !known.includes(reference))).toEqual([]);
  expect(known.filter((reference) => !used.has(reference))).toEqual([]);
});

test('every operation has a unique name, a tag, a summary and a problem for errors', () => {
  const ids = new Set<string>();
  for (const [path, item] of Object.entries<object>(document.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      expect(operation, `${method} ${path}`).toMatchObject({
        operationId: expect.stringMatching(/^[a-z][A-Za-z]+$/),
        tags: [expect.stringMatching(/./)],
        summary: expect.stringMatching(/./),
        responses: {
          default: { content: { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } } },
        },
      });
      expect(ids).not.toContain(operation.operationId);
      ids.add(operation.operationId);
    }
  }
});

test('routes that start operations document the 202 answer and the Prefer header', () => {
  const { responses, parameters } = document.paths['/v1/volumes'].post;
  expect(responses['202'].content['application/json'].schema).toEqual({ $ref: '#/components/schemas/Operation' });
  expect(parameters.map((parameter: { name: string }) => parameter.name)).toEqual(['Idempotency-Key', 'Prefer']);
  expect(document.paths['/v1/tokens'].post.responses['202']).toBeUndefined();
});

test('paths without authentication say so, and all others need a token', () => {
  const open = Object.entries<{ get?: { security?: unknown[] } }>(document.paths)
    .filter(([, item]) => item.get?.security?.length === 0)
    .map(([path]) => path);
  expect(open.sort()).toEqual(['/healthz', '/openapi.json', '/readyz']);
  expect(document.security).toEqual([{ bearer: [] }]);
});
