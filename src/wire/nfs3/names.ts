import type { Text } from '../xdr/writer.ts';
import { maxNameBytes } from './structures.ts';

/** A name that no directory can contain. Servers handle such names differently, so the client does not send them. */
export class NameError extends Error {
  override readonly name = 'NameError';
}

const slash = 0x2f;
const tooLong = `it is longer than ${maxNameBytes} bytes`;

/** Throws NameError. `.` and `..` are invalid, too: `..` would lead out of the directory. */
export function checkName(name: Text): void {
  const problem = typeof name === 'string' ? textProblem(name) : bytesProblem(name);
  if (problem !== undefined) throw new NameError(`${JSON.stringify(toDisplayName(name))} cannot be a name: ${problem}`);
}

const toDisplayName = (name: Text): string =>
  (typeof name === 'string' ? name : Buffer.from(name).toString('utf8')).slice(0, 64);

function textProblem(name: string): string | undefined {
  if (name === '') return 'it is empty';
  if (name === '.' || name === '..') return 'it means a directory';
  if (name.includes('/')) return 'it contains a slash';
  if (name.includes('\0')) return 'it contains a NUL character';
  // UTF-8 needs at most three bytes for each UTF-16 unit, so most names need no byte count.
  if (name.length > maxNameBytes / 3 && Buffer.byteLength(name) > maxNameBytes) return tooLong;
  return undefined;
}

/** Checks short names as text, for `.`, `..` and the empty name. */
function bytesProblem(name: Uint8Array): string | undefined {
  if (name.length > maxNameBytes) return tooLong;
  if (name.includes(slash)) return 'it contains a slash';
  if (name.includes(0)) return 'it contains a NUL character';
  return name.length <= 2 ? textProblem(Buffer.from(name).toString('latin1')) : undefined;
}

/** Whether a name from a server can be a directory entry. Listings skip the others. */
export function isValidName(name: Text): boolean {
  const wrong = typeof name === 'string' ? textProblem(name) : bytesProblem(name);
  return wrong === undefined;
}

/** Rejects with the NameError instead of throwing it, like every other failure. */
export function withValidName<R>({ name }: { readonly name: Text }, work: () => Promise<R>): Promise<R> {
  try {
    checkName(name);
  } catch (cause) {
    return Promise.reject(cause);
  }
  return work();
}
