import { glob, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { parse, type Source } from './syntax.ts';

const repository = dirname(dirname(import.meta.dirname));

/** The program's own files, parsed. */
export async function programSources(): Promise<readonly Source[]> {
  const sources: Source[] = [];
  const exclude = ['src/**/*.test.ts', 'src/testing/**', 'src/**/fixtures/**', 'src/cli/scripted-server.ts'];
  for await (const path of glob('src/**/*.ts', { cwd: repository, exclude }))
    sources.push(parse(path, await readFile(join(repository, path), 'utf8')));
  // Sorted, because the order of a directory listing must not change a page.
  return sources.sort((a, b) => (a.path < b.path ? -1 : 1));
}
