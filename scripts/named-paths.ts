import type { Document } from './documents.ts';

/**
 * Documents for developers name files of the tree. Documents for users contain other names that look like paths:
 * `stores/check`.
 */
export const isForDevelopers = ({ path }: Document): boolean =>
  /^(?!CHANGELOG)[A-Z]+\.md$|^docs\/(designs\/|benchmarks\.md)|^src\//.test(path);

/** Folders of the repository and of `src`. A text that begins with one of them is a path of the tree. */
const folders = [
  'bench',
  'bin',
  'deploy',
  'docs',
  'e2e',
  'scripts',
  'src',
  'app',
  'base',
  'cli',
  'clients',
  'cluster',
  'controllers',
  'core',
  'datapath',
  'front',
  'keeper',
  'records',
  'stores',
  'testing',
  'wire',
];
/** Excludes blanks and placeholders such as `<id>`. */
const pathCharacters = /^[\w.{},*/-]+$/;

const isPath = (text: string): boolean =>
  pathCharacters.test(text) &&
  (/\w\.(ts|md|svg)$/.test(text) || folders.some((folder) => text.startsWith(`${folder}/`)));

/** Expands `a/{b,c}.ts` to two paths. */
function alternatives(path: string): readonly string[] {
  const [braces, inside] = /\{([^{}]*)\}/.exec(path) ?? [];
  if (braces === undefined || inside === undefined) return [path];
  return inside.split(',').flatMap((part) => alternatives(path.replace(braces, part)));
}

const pathsIn = (text: string): readonly string[] =>
  [...text.matchAll(/`([^`\n]+)`/g)].flatMap(([, span = '']) => (isPath(span) ? alternatives(span) : []));

interface DrawnPath {
  readonly folder: string;
  readonly name: string;
}

/**
 * The paths in the drawing of `src` in ARCHITECTURE.md. A line such as `├─ core/` begins a folder, and the following
 * lines name its files.
 */
function drawnPaths(text: string): readonly DrawnPath[] {
  const [, drawing = ''] = /^src\/\n((?:[│├└].*\n)+)/m.exec(text) ?? [];
  let folder = 'src';
  return drawing.split('\n').flatMap((line) => {
    const [, begun] = /^[├└]─ (\S+)\//.exec(line) ?? [];
    if (begun !== undefined) folder = `src/${begun}`;
    const files = [...line.matchAll(/[\w*-][\w.{},*/-]*\.(?:ts|md)\b/g)].flatMap(([name]) => alternatives(name));
    return [
      ...(begun === undefined ? [] : [{ folder: 'src', name: begun }]),
      ...files.map((name) => ({ folder, name })),
    ];
  });
}

const laterHeading = '## Where later parts go';

/** The second column of the table of later parts. */
const laterColumn = /^\|[^|\n]*\|([^|\n]*)\|/gm;

function splitLater(text: string): { readonly now: string; readonly later: string } {
  const [now = '', section = ''] = text.split(`\n${laterHeading}\n`);
  const later = [...section.matchAll(laterColumn)].map(([, cell = '']) => cell).join('\n');
  return { now: `${now}\n${section.replaceAll(laterColumn, '')}`, later };
}

/** `*` stands for any part of a name. */
const patternOf = (path: string): string => RegExp.escape(path.replace(/\/$/, '')).replaceAll('\\*', '[^/\\n]*');

/**
 * Paths in documents that do not exist, and later parts that do, as sentences. A path may omit leading folders:
 * `core/errors.ts` means `src/core/errors.ts`, and a name alone means that file in any folder.
 */
export function pathFaults(documents: readonly Document[], files: readonly string[]): readonly string[] {
  const all = `\n${files.map((file) => `/${file}`).join('\n')}\n`;
  const exists = (path: string): boolean => new RegExp(`/${patternOf(path)}[/\\n]`).test(all);
  const isBelow = ({ folder, name }: DrawnPath): boolean =>
    new RegExp(`\\n/${patternOf(folder)}/(?:.*/)?${patternOf(name)}[/\\n]`).test(all);
  return documents.flatMap(({ path, text }) => {
    const { now, later } = splitLater(text.replaceAll(/^```.*?^```/gms, ''));
    const missing = pathsIn(now).filter((named) => !exists(named));
    const misplaced = drawnPaths(text).filter(
      (drawn) => !isBelow(drawn) && !(drawn.name.includes('/') && exists(drawn.name)),
    );
    return [
      ...[...new Set(missing)].map((named) => `${path}: ${named} does not exist`),
      ...misplaced.map(({ folder, name }) => `${path}: ${folder}/ has no ${name}`),
      ...pathsIn(later)
        .filter(exists)
        .map((named) => `${path}: ${named} exists, so it is no later part`),
    ];
  });
}
