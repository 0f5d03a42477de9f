import type { Text } from '../xdr/writer.ts';
import { maxName } from './structures.ts';

/** A name that no directory can hold: servers differ in what they make of one, so none is asked. */
export class NameError extends Error {
  override readonly name = 'NameError';
}

const slash = 0x2f;
const tooLong = `it is longer than ${maxName} bytes`;

/** Throws NameError. `..` and `.` are no names: they would lead out of the directory. */
export function checkName(name: Text): void {
  const wrong = typeof name === 'string' ? textProblem(name) : bytesProblem(name);
  if (wrong !== undefined) throw new NameError(`${JSON.stringify(toDisplayName(name))} cannot be a name: ${wrong}`);
}

const toDisplayName = (name: Text): string =>
  (typeof name === 'string' ? name : Buffer.from(name).toString('utf8')).slice(0, 64);

function textProblem(name: string): string | undefined {
  if (name === '') return 'it is empty';
  if (name === '.' || name === '..') return 'it means a directory';
  if (name.includes('/')) return 'it contains a slash';
  if (name.includes('\0')) return 'it contains a NUL character';
  // Most names are short enough whatever they are made of.
  if (name.length > maxName / 3 && Buffer.byteLength(name) > maxName) return tooLong;
  return undefined;
}

/** A short one is looked at as text, in which nothing but its bytes counts. */
function bytesProblem(name: Uint8Array): string | undefined {
  if (name.length > maxName) return tooLong;
  if (name.includes(slash)) return 'it contains a slash';
  if (name.includes(0)) return 'it contains a NUL character';
  return name.length <= 2 ? textProblem(Buffer.from(name).toString('latin1')) : undefined;
}

/** Whether a server may have meant this as an entry of a directory. What is not one is left out of listings. */
export function isValidName(name: Text): boolean {
  const wrong = typeof name === 'string' ? textProblem(name) : bytesProblem(name);
  return wrong === undefined;
}
