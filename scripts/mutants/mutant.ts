import { readFile } from 'node:fs/promises';
import { programFiles, type SourceFile } from '#testing/imports.ts';
import { type Change, changesOf } from './operators.ts';

/** A change, and how to find it again after the file was edited elsewhere. */
export interface Mutant extends Change {
  readonly file: string;
  readonly line: number;
  /** The offset of the change in the context. */
  readonly column: number;
  /** The complete lines that contain the change. */
  readonly context: string;
  /** How often the context occurs in the file, and how often before this change. */
  readonly contexts: number;
  readonly contextsBefore: number;
}

/** The sources whose changes the tests should detect, sorted by path. */
export async function mutableFiles(root: string): Promise<readonly SourceFile[]> {
  const files = await programFiles(root);
  return files
    .filter(({ path }) => !/\/(?:generated|fixtures)\//.test(path))
    .toSorted((a, b) => (a.path < b.path ? -1 : 1));
}

/**
 * Chooses `count` of all possible mutants with equal probability. The result depends only on the seed and the sources.
 */
export function chooseMutants(files: readonly SourceFile[], seed: number, count: number): readonly Mutant[] {
  const pool = files.flatMap((file) => changesOf(file.path, file.text).map((change) => ({ file, change })));
  const random = seededRandom(seed);
  const chosen: Mutant[] = [];
  while (chosen.length < count && pool.length > 0) {
    const at = Math.floor(random() * pool.length);
    const [taken] = pool.splice(at, 1);
    if (taken !== undefined) chosen.push(mutantOf(taken.file, taken.change));
  }
  return chosen;
}

/** The generator mulberry32: numbers from 0 to 1, the same ones for the same seed. */
function seededRandom(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function mutantOf({ path, text }: SourceFile, change: Change): Mutant {
  const end = change.offset + change.original.length;
  const contextStart = text.lastIndexOf('\n', change.offset - 1) + 1;
  const contextEnd = text.indexOf('\n', end);
  const context = text.slice(contextStart, contextEnd === -1 ? text.length : contextEnd);
  const starts = startsOf(text, context);
  return {
    file: path,
    line: text.slice(0, change.offset).split('\n').length,
    ...change,
    column: change.offset - contextStart,
    context,
    contexts: starts.length,
    contextsBefore: starts.indexOf(contextStart),
  };
}

/** The offsets at which lines equal to the context start. */
function startsOf(text: string, context: string): readonly number[] {
  const [lined, wanted] = [`\n${text}\n`, `\n${context}\n`];
  const starts: number[] = [];
  for (let at = lined.indexOf(wanted); at !== -1; at = lined.indexOf(wanted, at + 1)) starts.push(at);
  return starts;
}

/** The text with the mutant. Undefined if the changed lines no longer exist, or can't be identified. */
export function applyMutant(text: string, mutant: Mutant): string | undefined {
  const starts = startsOf(text, mutant.context);
  const start = starts[mutant.contextsBefore];
  if (start === undefined || starts.length !== mutant.contexts) return undefined;
  const at = start + mutant.column;
  if (!text.startsWith(mutant.original, at)) return undefined;
  return text.slice(0, at) + mutant.replacement + text.slice(at + mutant.original.length);
}

/** Reads the mutants that `--list` wrote. */
export async function readMutants(file: string): Promise<readonly Mutant[]> {
  return JSON.parse(await readFile(file, 'utf8'));
}
