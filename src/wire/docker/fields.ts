import { isJsonObject } from '#base/json.ts';
import { garbledError } from './errors.ts';

/** Reads the fields of an object in a reply. A missing field or a wrong type is an error that names the call and the field. */
export interface Fields {
  text(name: string): string;
  /** Returns an empty text if the field is missing. */
  optionalText(name: string): string;
  count(name: string): number;
  flag(name: string): boolean;
  /** False if it is missing. */
  optionalFlag(name: string): boolean;
  /** Empty if it is missing: engines omit empty lists, or send null. */
  texts(name: string): readonly string[];
  textMap(name: string): Readonly<Record<string, string>>;
  object(name: string): Fields;
  /** An object without fields if it is missing. */
  optionalObject(name: string): Fields;
  objects(name: string): readonly Fields[];
  /** All fields, which must be objects. */
  entries(): readonly (readonly [string, Fields])[];
}

export function fieldsOf(value: unknown, call: string, path = ''): Fields {
  if (!isJsonObject(value)) throw garbledError(call, `${path === '' ? 'the answer' : path} is not an object`);
  const pathOf = (name: string): string => (path === '' ? name : `${path}.${name}`);
  function field<T>(name: string, kind: string, is: (value: unknown) => value is T, absent?: T): T {
    // Own properties only, not inherited ones.
    const found = Object.hasOwn(value as object, name) ? (value as Record<string, unknown>)[name] : undefined;
    if ((found === undefined || found === null) && absent !== undefined) return absent;
    if (!is(found)) throw garbledError(call, `${pathOf(name)} is ${found === undefined ? 'missing' : `not ${kind}`}`);
    return found;
  }
  return {
    text: (name) => field(name, 'a text', isText),
    optionalText: (name) => field(name, 'a text', isText, ''),
    count: (name) => field(name, 'a number', isCount),
    flag: (name) => field(name, 'true or false', isFlag),
    optionalFlag: (name) => field(name, 'true or false', isFlag, false),
    texts: (name) => field(name, 'a list of texts', isTexts, []),
    textMap: (name) => field(name, 'a map of texts', isTextMap, {}),
    object: (name) => fieldsOf(field(name, 'an object', isJsonObject), call, pathOf(name)),
    optionalObject: (name) => fieldsOf(field(name, 'an object', isJsonObject, {}), call, pathOf(name)),
    objects: (name) => listOf(field(name, 'a list', Array.isArray, []), call, pathOf(name)),
    entries: () => Object.entries(value).map(([name, one]) => [name, fieldsOf(one, call, pathOf(name))] as const),
  };
}

export function listOf(value: unknown, call: string, path = ''): readonly Fields[] {
  if (!Array.isArray(value)) throw garbledError(call, `${path === '' ? 'the answer' : path} is not a list`);
  return value.map((one, i) => fieldsOf(one, call, `${path}[${i}]`));
}

const isFlag = (value: unknown): value is boolean => typeof value === 'boolean';
const isText = (value: unknown): value is string => typeof value === 'string';
const isCount = (value: unknown): value is number => Number.isSafeInteger(value);
const isTexts = (value: unknown): value is string[] => Array.isArray(value) && value.every(isText);
const isTextMap = (value: unknown): value is Record<string, string> =>
  isJsonObject(value) && Object.values(value).every(isText);
