import { anchor, code, table } from './markdown.ts';

type Json = Readonly<Record<string, unknown>>;

const isJson = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value);
const valueAt = (value: unknown, ...path: readonly string[]): unknown =>
  path.reduce<unknown>((at, key) => (isJson(at) ? at[key] : undefined), value);
const entries = (value: unknown): readonly (readonly [string, Json])[] =>
  isJson(value) ? Object.entries(value).filter((entry): entry is [string, Json] => isJson(entry[1])) : [];
const text = (value: unknown): string => (typeof value === 'string' ? value : '');
const list = (value: unknown): readonly Json[] => (Array.isArray(value) ? value.filter(isJson) : []);

/** Replaces each `$ref` by its target. `around` has the enclosing references, because a schema may be recursive. */
function resolved(value: unknown, document: unknown, around: readonly string[] = []): unknown {
  if (Array.isArray(value)) return value.map((part) => resolved(part, document, around));
  if (!isJson(value)) return value;
  const to = value['$ref'];
  if (typeof to !== 'string')
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, resolved(part, document, around)]));
  if (around.includes(to)) return { type: 'object' };
  const found = to.startsWith('#/') ? valueAt(document, ...to.slice(2).split('/')) : undefined;
  if (found === undefined) throw new Error(`the OpenAPI document refers to ${to}, which is not in it`);
  return resolved(found, document, [...around, to]);
}

/** A short description of a schema. */
function typeOf(schema: unknown): string {
  if (!isJson(schema)) return 'anything';
  const union = list(schema['anyOf']);
  if (union.length > 0) return union.map(typeOf).join(' or ');
  const values = schema['enum'];
  if (Array.isArray(values)) return values.map((value) => code(String(value))).join(' or ');
  if (schema['type'] === 'array') return `list of ${typeOf(schema['items'])}`;
  if (schema['type'] !== 'object') return text(schema['type']) || 'anything';
  const names = Object.keys(isJson(schema['properties']) ? schema['properties'] : {});
  return names.length === 0 ? 'object' : `object of ${names.map(code).join(', ')}`;
}

function limits(schema: Json): string {
  const [first] = list(schema['anyOf']);
  if (first !== undefined && schema['description'] === undefined) return limits(first);
  const said = [text(schema['description'])];
  const pattern = schema['pattern'];
  if (typeof pattern === 'string' && said[0] === '') said.push(`matches ${code(pattern)}`);
  if (typeof schema['minimum'] === 'number') said.push(`${schema['minimum']} to ${String(schema['maximum'])}`);
  return said
    .filter((one) => one !== '')
    .join('; ')
    .replaceAll('<', '&lt;');
}

function fieldRows(schema: unknown): readonly (readonly [name: string, type: string, needed: string, about: string])[] {
  const required = valueAt(schema, 'required');
  const needed = new Set(Array.isArray(required) ? required : []);
  return entries(valueAt(schema, 'properties')).map(([name, field]) => [
    code(name),
    typeOf(field),
    needed.has(name) ? 'yes' : '',
    limits(field),
  ]);
}

/** The printed tables by their content. A repeated table becomes a link to the first one. */
type Seen = Map<string, string>;

function answerLines(operation: Json, heading: string, seen: Seen): readonly string[] {
  const answers = entries(operation['responses']);
  const [status = '', answer] = answers.find(([name]) => name !== '202' && name !== 'default') ?? [];
  const [[, content] = []] = entries(valueAt(answer, 'content'));
  const schema = valueAt(content, 'schema');
  const items = valueAt(schema, 'properties', 'items', 'items');
  const fields = fieldRows(items ?? schema).map(([name, type, , about]) => [name, type, about]);
  const page = items === undefined ? '' : ' A list: `items` and `next`.';
  const said = `Answers ${code(status)}: ${text(valueAt(answer, 'description'))}.${page}`;
  if (fields.length === 0) return [said, ''];
  const rows = table(['Field', 'Type', ''], fields);
  const first = seen.get(rows.join('\n'));
  if (first !== undefined) return [`${said} The fields are those of [${first}](#${anchor(first)}).`, ''];
  seen.set(rows.join('\n'), heading);
  return [said, '', ...rows, ''];
}

/** Headers that the page explains once, at the top. */
const everywhere = ['Idempotency-Key', 'Prefer'];

function aboutLine(operation: Json): string {
  const summary = text(operation['summary']);
  const open = Array.isArray(operation['security']) && operation['security'].length === 0;
  const background = list(operation['parameters']).some((one) => one['name'] === 'Prefer');
  return [
    `${summary}${summary.endsWith('?') ? '' : '.'}`,
    open ? 'Needs no token.' : text(operation['description']),
    background ? 'Takes `Prefer: respond-async`.' : '',
  ]
    .filter((sentence) => sentence !== '')
    .join(' ');
}

function operationLines(path: string, method: string, operation: Json, seen: Seen): readonly string[] {
  const heading = `${method.toUpperCase()} ${path}`;
  const parameters = list(operation['parameters'])
    .filter((one) => !everywhere.includes(text(one['name'])))
    .map((one) => [
      code(text(one['name'])),
      text(one['in']),
      typeOf(one['schema']),
      text(one['description']) || limits(isJson(one['schema']) ? one['schema'] : {}),
    ]);
  const body = valueAt(operation, 'requestBody', 'content', 'application/json', 'schema');
  const optional = valueAt(operation, 'requestBody', 'required') === false ? ' (may be left out)' : '';
  const bodyRows = body === undefined ? [] : table(['Field', 'Type', 'Required', ''], fieldRows(body));
  return [
    `### ${heading}`,
    '',
    aboutLine(operation),
    '',
    ...(parameters.length === 0 ? [] : [...table(['Parameter', 'In', 'Type', ''], parameters), '']),
    ...(bodyRows.length === 0 ? [] : [`Body${optional}:`, '', ...bodyRows, '']),
    ...answerLines(operation, heading, seen),
  ];
}

/** One section per tag, in the order of the routes. */
export function apiPage(document: unknown): string {
  const operations = entries(resolved(valueAt(document, 'paths'), document)).flatMap(([path, methods]) =>
    entries(methods).map(([method, operation]) => ({ path, method, operation })),
  );
  const byTag = Map.groupBy(operations, ({ operation }) => String(operation['tags']));
  const seen: Seen = new Map();
  return [
    '# REST API',
    '',
    'Generated from the OpenAPI document that the server serves at `/openapi.json`. [The API guide](../api.md) describes its use,',
    'with examples. Every error is a [problem](errors.md).',
    '',
    'Every request that changes something (`POST`, `PATCH`, `DELETE`) also takes the header `Idempotency-Key`: the same key',
    'returns the same answer for a day. Some also take `Prefer: respond-async`, as documented below: they answer `202` with an',
    '[operation](#get-v1operationsid) as soon as the work is on record.',
    '',
    ...[...byTag].flatMap(([tag, found]) => [
      `## ${tag}`,
      '',
      ...found.flatMap(({ path, method, operation }) => operationLines(path, method, operation, seen)),
    ]),
  ].join('\n');
}
