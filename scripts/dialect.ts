import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Phrases that are not plain English: see CONTRIBUTING.md. */
export const forbiddenPhrases: readonly string[] = [
  'already so',
  'anew',
  'at work there',
  'by heart',
  'goes by',
  'gone on with',
  'is ill',
  'is known of',
  'is told',
  'keeps nobody',
  'looked past',
  'of those that',
  'patience',
  'was told',
  'well again',
  'what was begun',
  'whoever',
];

/** Generated files repeat the sources, and the changelog is history. */
const searched = ['{src,e2e,bench,scripts}/**/*.ts', 'docs/**/*.md', 'README.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md'];
const notSearched = ['src/wire/csi/generated/**', 'docs/reference/**', 'scripts/dialect*.ts'];

export interface Text {
  /** The path from the repository's root. */
  readonly path: string;
  /** The whole text, or only the comments and strings of a source file. */
  readonly text: string;
}

export const textsIn = (root: string): readonly Text[] =>
  globSync(searched, { cwd: root, exclude: notSearched })
    .toSorted()
    .map((path) => {
      const text = readFileSync(join(root, path), 'utf8');
      return { path, text: path.endsWith('.ts') ? withoutCode(text) : text };
    });

/**
 * Matches regular expressions as well, because a quote or a slash in one could look like the start of a string or a
 * comment.
 */
const token =
  /\/\*[\s\S]*?\*\/|\/\/.*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\[\s\S])*`|\/(?<=[=(,:!&|?[]\s*\/)(?:[^/\\\n[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\//g;

/** The comments and strings of a source file at their original positions, with blanks instead of the code. */
export function withoutCode(source: string): string {
  const code = (from: number, to?: number): string => source.slice(from, to).replaceAll(/[^\n]/g, ' ');
  let text = '';
  for (const { 0: found, index } of source.matchAll(token)) text += code(text.length, index) + found;
  return text + code(text.length);
}

/** Matches whole words in any case. A phrase may continue on the next line of a comment. */
const patternOf = (phrase: string): RegExp => new RegExp(`\\b${phrase.replaceAll(' ', '[\\s/*]+')}\\b`, 'gi');

/** Each occurrence, as `path:line`. */
export function placesOf(phrase: string, texts: readonly Text[]): readonly string[] {
  const pattern = patternOf(phrase);
  return texts.flatMap(({ path, text }) =>
    [...text.matchAll(pattern)].map(({ index }) => `${path}:${text.slice(0, index).split('\n').length}`),
  );
}

/** Each forbidden phrase that occurs, with all its occurrences. */
export function dialectFaults(
  texts: readonly Text[],
  phrases: readonly string[] = forbiddenPhrases,
): readonly string[] {
  return phrases.flatMap((phrase) => {
    const places = placesOf(phrase, texts);
    return places.length === 0 ? [] : [`"${phrase}" is not plain English:`, ...places.map((place) => `  ${place}`)];
  });
}
