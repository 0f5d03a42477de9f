import { parseDuration } from '#base/duration.ts';
import { parseSize } from '#base/size.ts';
import type { ReasonWith } from '#core/errors.ts';
import { invalid } from './problem.ts';
import { escapeControls } from './text.ts';

const idGrammar = /^sv1-[0-9a-f-]{36}$/;
export const isVolumeId = (text: string): boolean => idGrammar.test(text);

/** Splits `store/name`, or a name alone. The server validates the names. */
export function splitRef(ref: string): { readonly store: string | undefined; readonly name: string } {
  const parts = ref.split('/');
  const [first = '', second] = parts;
  // URL normalization would remove '.' and '..'.
  if (parts.length > 2 || parts.some((part) => part === '' || part === '.' || part === '..')) {
    throw invalid(
      `'${escapeControls(ref)}' is not a valid volume reference`,
      'volume-reference',
      'Use STORE/NAME, NAME, or the id (sv1-…).',
    );
  }
  return second === undefined ? { store: undefined, name: first } : { store: first, name: second };
}

/** A volume reference as a path segment of the API. */
export function refPath(ref: string): string {
  const { store, name } = splitRef(ref);
  return encodeURIComponent(store === undefined ? name : `${store}..${name}`);
}

/** The name of anything but a volume, as a path segment of the API. */
export function pathSegment(what: string, name: string, reason: ReasonWith<'invalid'>): string {
  if (name !== '' && name !== '.' && name !== '..') return encodeURIComponent(name);
  throw invalid(
    `'${escapeControls(name)}' is not a valid ${what} reference`,
    reason,
    'Copy the name or id from the output of the list command.',
  );
}

export const qualifiedName = (volume: { readonly store: string; readonly name: string }): string =>
  escapeControls(`${volume.store}/${volume.name}`);

export function parseSizeArgument(text: string): string {
  const bytes = parseSize(text);
  if (bytes !== undefined) return String(bytes);
  throw invalid(
    `'${escapeControls(text)}' is not a size`,
    'size-invalid',
    'Write a size such as 500M, 1G or 1.5T (powers of 1024); 1GB means 10^9 bytes.',
  );
}

export function parseDurationArgument(text: string): number {
  const ms = /^[0-9]{1,6}$/.test(text) ? Number(text) * 1000 : parseDuration(text);
  if (ms !== undefined && ms > 0) return ms;
  throw invalid(
    `'${escapeControls(text)}' is not a duration`,
    'duration-invalid',
    'Write a duration such as 30s, 15m, 12h or 7d.',
  );
}

export function parseNumberArgument(
  option: string,
  text: string,
  range?: { readonly from: number; readonly to: number },
): number {
  const number = /^[0-9]{1,10}$/.test(text) ? Number(text) : Number.NaN;
  const { from, to } = range ?? { from: 0, to: number };
  if (number >= from && number <= to) return number;
  throw invalid(
    `'${escapeControls(text)}' is not a valid number for ${option}`,
    'number-invalid',
    `Write a whole number${range === undefined ? '' : ` from ${from} to ${to}`}: ${option} 20`,
  );
}

export interface RevisionFlag {
  readonly ifRevision?: string;
}

export const parseRevision = ({ ifRevision }: RevisionFlag): number | undefined =>
  ifRevision === undefined ? undefined : parseNumberArgument('--if-revision', ifRevision);

/** `k=v` pairs. */
export function parseLabels(pairs: readonly string[]): Record<string, string> {
  const labels: Record<string, string> = Object.create(null);
  for (const pair of pairs) {
    const at = pair.indexOf('=');
    if (at < 1) throw wrongLabel(pair, 'Write a label as key=value, for example team=blue.');
    labels[pair.slice(0, at)] = pair.slice(at + 1);
  }
  return labels;
}

/** `k=v` sets a label, `k-` removes it. */
export function parseLabelChanges(words: readonly string[]): Record<string, string | null> {
  const changes: Record<string, string | null> = Object.create(null);
  for (const word of words) {
    if (word.includes('=')) Object.assign(changes, parseLabels([word]));
    else if (word.endsWith('-') && word.length > 1) changes[word.slice(0, -1)] = null;
    else throw wrongLabel(word, 'Write key=value to set a label, key- to remove it.');
  }
  return changes;
}

const wrongLabel = (text: string, action: string): Error =>
  invalid(`'${escapeControls(text)}' is not a label`, 'label-invalid', action);
