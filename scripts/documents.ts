import { existsSync, readFileSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { dirname, join, normalize, relative } from 'node:path';
import { anchor } from './docs/markdown.ts';

export interface Document {
  /** The path from the repository's root. */
  readonly path: string;
  readonly text: string;
}

const foreignFiles = ['**/node_modules/**', '.git/**', 'dist/**', '.stowage-*/**'];

export async function documentsIn(root: string): Promise<readonly Document[]> {
  const found: Document[] = [];
  for await (const path of glob('**/*.md', {
    cwd: root,
    exclude: foreignFiles,
  })) {
    found.push({ path, text: readFileSync(join(root, path), 'utf8') });
  }
  return found;
}

export async function filesIn(root: string): Promise<readonly string[]> {
  const found = await Array.fromAsync(glob('**', { cwd: root, exclude: foreignFiles, withFileTypes: true }));
  return found
    .filter((entry) => !entry.isDirectory())
    .map((entry) => relative(root, join(entry.parentPath, entry.name)));
}

/** The text without code: links and headings in code don't count. */
const withoutCode = (text: string): string => text.replaceAll(/^```.*?^```/gms, '').replaceAll(/`[^`\n]*`/g, '');

function anchorsOf(text: string): ReadonlySet<string> {
  const headings = text.replaceAll(/^```.*?^```/gms, '').matchAll(/^#+ (.*)$/gm);
  return new Set([...headings].map(([, heading = '']) => anchor(heading)));
}

/** Each relative link without a target, as a sentence. */
export function brokenLinks(documents: readonly Document[], root: string): readonly string[] {
  const anchors = new Map(documents.map(({ path, text }) => [path, anchorsOf(text)]));
  return documents.flatMap(({ path, text }) =>
    [...withoutCode(text).matchAll(/\]\(([^)\s]+)\)/g)].flatMap(([, link = '']) => {
      if (/^[a-z]+:/.test(link)) return [];
      const [file = '', fragment] = link.split('#');
      const target = file === '' ? path : normalize(join(dirname(path), file));
      if (!anchors.has(target) && !existsSync(join(root, target))) return [`${path}: ${link} does not exist`];
      if (fragment === undefined || anchors.get(target)?.has(fragment) !== false) return [];
      return [`${path}: ${link} has no such heading`];
    }),
  );
}

type Manifest = Readonly<Record<string, Readonly<Record<string, string>>>>;

/** Each difference between DEPENDENCIES.txt and package.json, as a sentence. */
export function dependencyFaults(list: string, manifest: Manifest): readonly string[] {
  const said = new Map(
    [...list.matchAll(/^(@?[a-z][\w./-]*) (\d\S*) [A-Z].*$/gm)].map(([, name = '', version = '']) => [name, version]),
  );
  const groups = ['dependencies', 'devDependencies', 'optionalDependencies'];
  const wanted = new Map(groups.flatMap((group) => Object.entries(manifest[group] ?? {})));
  const missing = [...wanted].filter(([name, version]) => said.get(name) !== version);
  const extra = [...said.keys()].filter((name) => !wanted.has(name));
  return [
    ...missing.map(([name, version]) => `DEPENDENCIES.txt lacks ${name} ${version}`),
    ...extra.map((name) => `DEPENDENCIES.txt has ${name}, package.json has not`),
  ];
}
