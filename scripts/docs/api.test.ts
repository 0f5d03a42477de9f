import { beforeAll, describe, expect, test } from 'vitest';
import { apiPage } from './api.ts';
import { askServer } from './live.ts';

interface Operation {
  readonly requestBody?: object;
  readonly responses: Readonly<Record<string, { readonly content?: Readonly<Record<string, object>> }>>;
}

describe('the API page, generated from a running server', () => {
  let page: string;
  let operations: readonly { readonly heading: string; readonly operation: Operation }[];

  beforeAll(async () => {
    const { openApi } = await askServer();
    page = apiPage(openApi);
    const { paths } = openApi as { readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>> };
    operations = Object.entries(paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => ({ heading: `${method.toUpperCase()} ${path}`, operation })),
    );
  });

  const section = (heading: string): string => page.split(/^##+ /m).find((one) => one.startsWith(`${heading}\n`)) ?? '';
  const fieldsAfter = (mark: string, text: string): string[] => {
    const [, rest = ''] = text.split(mark);
    return [...(rest.split(/^\| --- .*$/m)[1] ?? '').matchAll(/^\| `(\w+)` \|/gm)].map(([, name = '']) => name);
  };

  test('lists the fields of requests, and which of them are required', () => {
    const create = section('POST /v1/volumes');
    expect(create).toMatch(/^\| `name` \| string \| yes \| .+ \|$/m);
    expect(create).toMatch(/^\| `bytes` \| string \| {2}\| Bytes, as a decimal string \|$/m);
  });

  test('lists the fields of answers, including combined schemas', () => {
    expect(fieldsAfter('Answers', section('GET /v1/volumes'))).toEqual(
      expect.arrayContaining(['id', 'store', 'name', 'bytes', 'revision']),
    );
    const restored = section('POST /v1/trash/{volume}/restore');
    expect(restored).toContain('The fields are those of [GET /v1/volumes](#get-v1volumes).');
    expect(fieldsAfter('Answers', section('POST /v1/volumes'))).toEqual(
      expect.arrayContaining(['id', 'revision', 'storeIdentity']),
    );
    expect(page).toContain('| `user` | object of `kind`, `name`, `node` |');
    expect(page).toContain('| `role` | `viewer` or `user` or `admin` |');
  });

  test('has no body and no answer without fields', () => {
    expect(operations.length).toBeGreaterThan(20);
    for (const { heading, operation } of operations) {
      const text = section(heading);
      expect(text, heading).not.toBe('');
      if (operation.requestBody !== undefined) expect(fieldsAfter('Body', text), heading).not.toEqual([]);
      const [, success] = Object.entries(operation.responses).find(([status]) => /^20[01]$/.test(status)) ?? [];
      if (!success?.content?.['application/json'] || heading === 'GET /openapi.json') continue;
      if (!text.includes('The fields are those of')) expect(fieldsAfter('Answers', text), heading).not.toEqual([]);
    }
  });

  test('documents Prefer: respond-async exactly where 202 is a documented answer', () => {
    const promised = operations.filter(({ heading }) => section(heading).includes('Takes `Prefer: respond-async`.'));
    expect(promised).toEqual(operations.filter(({ operation }) => '202' in operation.responses));
    expect(promised.map(({ heading }) => heading)).toContain('DELETE /v1/volumes/{volume}');
    expect(promised.map(({ heading }) => heading)).not.toContain('POST /v1/tokens');
  });
});

describe('a document', () => {
  const answering = (schema: object, components: object): object => ({
    paths: {
      '/x': { get: { tags: ['t'], summary: 'x', responses: { 200: { content: { 'application/json': { schema } } } } } },
    },
    components,
  });

  test('with a dangling reference is refused, and a recursive schema terminates', () => {
    const schema = { $ref: '#/components/schemas/Node' };
    expect(() => apiPage(answering(schema, {}))).toThrow('#/components/schemas/Node');
    const node = { type: 'object', properties: { name: { type: 'string' }, below: schema } };
    expect(apiPage(answering(schema, { schemas: { Node: node } }))).toContain('| `below` | object |');
  });
});
