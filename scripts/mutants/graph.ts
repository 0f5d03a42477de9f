import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { importsOf, type SourceFile } from '#testing/imports.ts';

/** Which file loads which other files at run time. Paths are from the root of the checkout. */
export interface Graph {
  readonly files: ReadonlyMap<string, SourceFile>;
  readonly loads: ReadonlyMap<string, ReadonlySet<string>>;
  readonly loadedBy: ReadonlyMap<string, ReadonlySet<string>>;
}

/** Files that affect every run, whatever the tests import. */
const alwaysLoaded = ['vitest.config.ts', 'src/testing/setup.ts', 'package.json', 'package-lock.json'];

export async function readGraph(root: string): Promise<Graph> {
  const paths = new Set(alwaysLoaded.filter((path) => existsSync(join(root, path))));
  for await (const path of glob('{src,e2e,scripts}/**/*.ts', { cwd: root })) paths.add(path);
  return graphOf([...paths].toSorted().map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') })));
}

export function graphOf(sources: readonly SourceFile[]): Graph {
  const files = new Map(sources.map((file) => [file.path, file]));
  const [loads, loadedBy] = [new Map<string, Set<string>>(), new Map<string, Set<string>>()];
  const add = (edges: Map<string, Set<string>>, from: string, to: string): void => {
    edges.set(from, (edges.get(from) ?? new Set()).add(to));
  };
  for (const file of sources) {
    const imported = importsOf([file]).filter((found) => !found.typeOnly);
    for (const target of [...imported.map((found) => found.target), ...startedBy(file)]) {
      if (!files.has(target)) continue;
      add(loads, file.path, target);
      add(loadedBy, target, file.path);
    }
  }
  return { files, loads, loadedBy };
}

/**
 * Programs that a file starts, such as `join(import.meta.dirname, '..', 'main.ts')`, also in a program that it writes.
 */
function startedBy({ path, text }: SourceFile): readonly string[] {
  return [...text.matchAll(startedPattern)].flatMap(([whole]) => {
    const words = [...whole.replaceAll(/\$\{extname\([^)]*\)\}/g, '.ts').matchAll(/['`]([^'`]+)['`]/g)];
    const names = words.map(([, word]) => word ?? '');
    const folders = names.filter((name) => !/\.\w+$/.test(name));
    return names.filter((name) => name.endsWith('.ts')).map((name) => join(dirname(path), ...folders, name));
  });
}

const startedPattern =
  /import\.meta\.dirname,[^;]*?\)|new URL\(\s*['`][^'`]+['`],\s*import\.meta\.url|import\.meta\.resolve\([^)]*\)/g;

/** For each file that loads one of `start`, the number of imports in between. `start` itself has 0. */
function distances(edges: Graph['loads'], start: readonly string[]): ReadonlyMap<string, number> {
  const found = new Map(start.map((path) => [path, 0]));
  // The loop also visits entries that it adds, so the nearest files come first.
  for (const [path, distance] of found) {
    for (const next of edges.get(path) ?? []) if (!found.has(next)) found.set(next, distance + 1);
  }
  return found;
}

/**
 * The test files under src/ that load a file: the one with the same name, then files in the same folder, then all
 * others. Each group is sorted by distance, then by size.
 */
export function relatedTests({ files, loadedBy }: Graph, file: string): readonly string[] {
  const sameName = file.replace(/\.ts$/, '.test.ts');
  const rank = (path: string): number => (path === sameName ? 0 : dirname(path) === dirname(file) ? 1 : 2);
  return [...distances(loadedBy, [file])]
    .filter(([path]) => path.startsWith('src/') && path.endsWith('.test.ts'))
    .map(([path, distance]) => ({ path, keys: [rank(path), distance, files.get(path)?.text.length ?? 0] }))
    .toSorted((a, b) => compare(a.keys, b.keys) || (a.path < b.path ? -1 : 1))
    .map(({ path }) => path);
}

const compare = (a: readonly number[], b: readonly number[]): number =>
  a.map((n, i) => n - (b[i] ?? 0)).find((difference) => difference !== 0) ?? 0;

/** Hashes the given files, all files that they import, and the files that affect every test run. */
export function closureHash({ files, loads }: Graph, of: readonly string[]): string {
  const hash = createHash('sha256');
  for (const path of [...distances(loads, [...of, ...alwaysLoaded]).keys()].toSorted()) {
    const file = files.get(path);
    if (file !== undefined) hash.update(`${path}\0${file.text.length}\0${file.text}\0`);
  }
  return hash.digest('hex');
}
