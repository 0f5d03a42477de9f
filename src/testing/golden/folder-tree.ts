import { lstat, mkdir, readdir, readFile, truncate, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

/** Paths below a folder, with the text of each file, and null for an empty folder. */
export type Tree = Readonly<Record<string, string | null>>;

/** Longer files are images, which contain only zeros in these tests. */
const maxTextBytes = 64 * 1024;

/** Replacements for text that differs in each run. */
export type Replacements = readonly (readonly [pattern: RegExp, by: string])[];

export async function readTree(root: string, fixed: Replacements = []): Promise<Tree> {
  const paths = (await readdir(root, { recursive: true })).toSorted();
  const found: [string, string | null][] = [];
  for (const path of paths) {
    const status = await lstat(join(root, path));
    if (status.isDirectory() && paths.some((other) => other.startsWith(`${path}/`))) continue;
    const text = status.isDirectory()
      ? null
      : status.size > maxTextBytes
        ? `${status.size} zeros`
        : await readFile(join(root, path), 'utf8');
    found.push([path, text && fixed.reduce((so, [pattern, by]) => so.replaceAll(pattern, by), text)]);
  }
  return Object.fromEntries(found);
}

export async function writeTree(root: string, tree: Tree): Promise<void> {
  for (const [path, text] of Object.entries(tree)) {
    await mkdir(join(root, text === null ? path : dirname(path)), { recursive: true, mode: 0o700 });
    const [, zeros] = /^(\d+) zeros$/.exec(text ?? '') ?? [];
    if (text !== null) await writeFile(join(root, path), zeros === undefined ? text : '');
    if (zeros !== undefined) await truncate(join(root, path), Number(zeros));
  }
}
