import type { TObject } from 'typebox';
import { Compile } from 'typebox/compile';
import { StowageError } from '#core/errors.ts';
import { checkLabels } from '#core/labels.ts';
import { quoted, storeName, volumeName } from '#core/names.ts';

/** Returns the valid value, or throws an error that names the invalid part. */
export type Check = (value: unknown) => unknown;

export function bodyCheck(schema: TObject, optional: boolean): Check {
  const validator = Compile(schema);
  return (value) => {
    if (value === undefined || value === null) {
      if (optional && value === undefined) return undefined;
      throw invalidRequest('the request has no body', 'Send a JSON object with content-type application/json.');
    }
    if (validator.Check(value)) return value;
    throw validationError('body', schema, value, validator.Errors(value));
  };
}

/** Converts strings from a URL to numbers and lists where the schema has them, then validates. */
export function textCheck(schema: TObject, what: string): Check {
  const validator = Compile(schema);
  return (value) => {
    // Object.fromEntries, not assignment: a parameter may be called __proto__.
    const read = Object.fromEntries(
      Object.entries(value as Record<string, unknown>).map(([key, text]) => [
        key,
        convert(schema.properties[key], text),
      ]),
    );
    if (validator.Check(read)) return read;
    throw validationError(what, schema, read, validator.Errors(read));
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

function validationError(what: string, schema: TObject, value: unknown, [first]: readonly SchemaFault[]): StowageError {
  const path = first?.instancePath.slice(1).split('/') ?? [];
  const part = partAt({ schema, value, help: undefined }, path);
  checkWithCore(part);
  const where = path.join('.');
  return invalidRequest(
    `the ${what}${where === '' ? '' : ` has an invalid ${quoted(where)}`}: ${readableMessage(first?.message)}`,
    part.help === undefined ? 'See /openapi.json for the expected format.' : `Expected: ${part.help}.`,
  );
}

interface SchemaPart {
  readonly schema: unknown;
  readonly value: unknown;
  /** The description of this schema, or of the nearest parent that has one. */
  readonly help: string | undefined;
}

/** The part at the path, as deep as the schema goes. */
function partAt(part: SchemaPart, [key, ...below]: readonly string[]): SchemaPart {
  const inner =
    key === undefined
      ? undefined
      : (ownProperty(ownProperty(part.schema, 'properties'), key) ?? ownProperty(part.schema, 'items'));
  if (key === undefined || inner === undefined) return part;
  const description = ownProperty(inner, 'description');
  const help = typeof description === 'string' ? description : part.help;
  return partAt({ schema: inner, value: ownProperty(part.value, key), help }, below);
}

const ownProperty = (value: unknown, key: string): unknown =>
  typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    ? (value as Readonly<Record<string, unknown>>)[key]
    : undefined;

/** Core's checks of names and labels have better messages than a pattern. */
function checkWithCore({ schema, value }: SchemaPart): void {
  const title = ownProperty(schema, 'title');
  if (title === 'Volume name' && typeof value === 'string') volumeName(value);
  if (title === 'Store name' && typeof value === 'string') storeName(value);
  if (title === 'Labels' && typeof value === 'object' && value !== null && !Array.isArray(value))
    checkLabels(Object.fromEntries(Object.entries(value).filter(([, text]) => typeof text === 'string')));
}

/** Replaces TypeBox's messages about unknown keys and regular expressions. */
function readableMessage(message = 'it does not match the schema'): string {
  if (message === 'schema is false') return 'unknown key';
  return message.startsWith('must match pattern') ? 'it does not match the expected format' : message;
}

function invalidRequest(message: string, action: string): StowageError {
  return new StowageError(message, { code: 'invalid', reason: 'request-invalid', action });
}
