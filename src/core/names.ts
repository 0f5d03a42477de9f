import { createHash, randomUUID } from 'node:crypto';
import { StowageError } from './errors.ts';
import type { OperationId, StoreName, VolumeId, VolumeName } from './model.ts';

const idGrammar = /^sv1-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** The pattern for schemas. `volumeName` and `storeName` check the rules that a pattern cannot express. */
export const namePattern = '^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$';
const nameGrammar = new RegExp(namePattern);

function nameProblem(name: string): string | undefined {
  if (name === '') return 'it is empty';
  if (name.length > 128) return `it has ${name.length} characters, the maximum is 128`;
  if (name.includes('..')) return "it contains '..'";
  if (name.endsWith('.meta')) return "names that end in '.meta' are reserved for Stowage's own records";
  if (idGrammar.test(name)) return 'it has the form of a volume id';
  if (!/^[A-Za-z0-9]/.test(name)) return 'it must begin with a letter or a digit';
  if (!nameGrammar.test(name)) return 'only the letters A-Z a-z, digits, and _ . - may be used';
  return undefined;
}

/** Escapes control characters and look-alikes, so that a name cannot forge a message. */
export function quoted(text: string): string {
  const short = text.length > 64 ? `${text.slice(0, 61)}...` : text;
  return `'${short.replace(/[^\x20-\x7e]/gu, (c) => `\\u{${c.codePointAt(0)?.toString(16)}}`)}'`;
}

function validName<T extends string>(what: string, name: string): T {
  const violation = nameProblem(name);
  if (violation === undefined) return name as T;
  throw new StowageError(`${quoted(name)} cannot be a ${what} name: ${violation}`, {
    code: 'invalid',
    reason: 'name-invalid',
    action: `Choose a name of 1 to 128 characters from A-Z a-z 0-9 _ . - that begins with a letter or digit.`,
  });
}

/** Every name from outside passes through one of these. */
export const volumeName = (name: string): VolumeName => validName<VolumeName>('volume', name);
export const storeName = (name: string): StoreName => validName<StoreName>('store', name);
export const isVolumeName = (name: string): name is VolumeName => nameProblem(name) === undefined;

/**
 * Derives a valid volume name from an arbitrary foreign name. Returns the foreign name itself if it is valid. Deterministic and
 * collision-free.
 */
export function nameFor(foreign: string): VolumeName {
  if (isVolumeName(foreign)) return foreign;
  const digest = createHash('sha256').update(foreign).digest('hex').slice(0, 32);
  const readable = foreign
    .replace(/[^A-Za-z0-9_.-]+/g, '-')
    .replace(/\.{2,}/g, '.')
    .replace(/^[^A-Za-z0-9]+/, '')
    .slice(0, 80)
    .replace(/[^A-Za-z0-9]+$/, '');
  return volumeName(readable === '' ? `volume-${digest}` : `${readable}-${digest}`);
}

export const isVolumeId = (text: string): text is VolumeId => idGrammar.test(text);
export const newVolumeId = (): VolumeId => `sv1-${randomUUID()}` as VolumeId;
export const newOperationId = (): OperationId => `op1-${randomUUID()}` as OperationId;

/** `store..name`: the qualified name in places that need a flat name. Neither part can contain '..'. */
export function qualified(store: StoreName, name: VolumeName): string {
  return `${store}..${name}`;
}

/** Undefined: not a qualified name. Does not validate the parts. */
export function partsOfQualified(ref: string): { readonly store: string; readonly name: string } | undefined {
  // Split at the last '..': a store name may end in a dot, a volume name cannot begin with one.
  const separator = ref.lastIndexOf('..');
  return separator === -1 ? undefined : { store: ref.slice(0, separator), name: ref.slice(separator + 2) };
}
