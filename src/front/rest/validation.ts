import type { TObject } from 'typebox';
import { Compile } from 'typebox/compile';
import { StowageError } from '#core/errors.ts';
import { quoted } from '#core/names.ts';

/** Gives the value if it fits; otherwise says which part does not, and why. */
export type Check = (value: unknown) => unknown;

export function bodyCheck(schema: TObject, optional: boolean): Check {
  const validator = Compile(schema);
  return (value) => {
    if (value === undefined || value === null) {
      if (optional && value === undefined) return undefined;
      throw refuse('the request has no body', 'Send a JSON object with content-type application/json.');
    }
    if (validator.Check(value)) return value;
    throw wrong('body', schema, validator.Errors(value));
  };
}

/** Text from a URL becomes numbers, booleans and lists where the schema has such. */
export function textCheck(schema: TObject, what: string): Check {
  const validator = Compile(schema);
  return (value) => {
    // Not by assignment: a parameter may be called __proto__.
    const read = Object.fromEntries(
      Object.entries(value as Record<string, unknown>).map(([key, text]) => [
        key,
        convert(schema.properties[key], text),
      ]),
    );
    if (validator.Check(read)) return read;
    throw wrong(what, schema, validator.Errors(read));
  };
}

function convert(property: unknown, text: unknown): unknown {
  const type = typeof property === 'object' && property !== null && 'type' in property ? property.type : undefined;
  if (type === 'array') return Array.isArray(text) ? text : [text];
  if (type === 'integer' && typeof text === 'string' && /^-?[0-9]{1,15}$/.test(text)) return Number(text);
  return text;
}

interface SchemaFault {
  readonly instancePath: string;
  readonly message: string;
}

function wrong(what: string, schema: TObject, [first]: readonly SchemaFault[]): StowageError {
  const path = first?.instancePath.slice(1).split('/') ?? [];
  const where = path.join('.');
  const help = helpAt(schema, path);
  return refuse(
    `the ${what}${where === '' ? '' : ` has a wrong ${quoted(where)}`}: ${said(first?.message)}`,
    help === undefined ? 'See /openapi.json for what is expected.' : `Expected: ${help}.`,
  );
}

/** What the schema says about that part, in words. */
function helpAt(schema: TObject, [key = '', ...below]: readonly string[]): string | undefined {
  const part: unknown = Object.hasOwn(schema.properties, key) ? schema.properties[key] : undefined;
  if (below.length > 0 || typeof part !== 'object' || part === null || !('description' in part)) return undefined;
  return String(part.description);
}

/** TypeBox's words for a key that is not in the schema help nobody. */
function said(message = 'it does not fit'): string {
  return message === 'schema is false' ? 'there is no such key' : message;
}

function refuse(message: string, action: string): StowageError {
  return new StowageError(message, { code: 'invalid', reason: 'request-invalid', action });
}
