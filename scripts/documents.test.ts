import { readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { brokenLinks, dependencyFaults, documentsIn, filesIn } from './documents.ts';
import { isForDevelopers, pathFaults } from './named-paths.ts';

const root = dirname(import.meta.dirname);
const read = (path: string): string => readFileSync(join(root, path), 'utf8');

describe('the documentation', () => {
  test('the README has the two commands, each alone on a line', () => {
    const lines = read('README.md').split('\n');
    expect(lines).toContain('npm ci && npm start');
    expect(lines).toContain('npm ci && npm test');
  });

  test('every relative link has a target', async () => {
    const documents = await documentsIn(root);
    expect(documents.map(({ path }) => path)).toEqual(
      expect.arrayContaining(['README.md', 'docs/reference/errors.md']),
    );
    expect(brokenLinks(documents, root)).toEqual([]);
  });

  test('a link to a missing file or heading is found, and one in code is ignored', () => {
    const text = '# One Two\n\n[a](README.md) [b](#one-two) [c](nowhere.md) [d](#three) `[e](nowhere.md)`\n';
    expect(brokenLinks([{ path: 'x.md', text }], root)).toEqual([
      'x.md: nowhere.md does not exist',
      'x.md: #three has no such heading',
    ]);
  });

  test('every path of the tree in a developer document exists, and no path in the table of later parts does', async () => {
    const documents = (await documentsIn(root)).filter(isForDevelopers);
    expect(documents.map(({ path }) => path)).toEqual(
      expect.arrayContaining(['ARCHITECTURE.md', 'CONTRIBUTING.md', 'SCOPE.md', 'docs/designs/kubernetes.md']),
    );
    expect(pathFaults(documents, await filesIn(root))).toEqual([]);
  });

  test('a path that does not exist is found in text and in the drawing of the tree, and so is a later part that exists', () => {
    const text = [
      'The code is in `core/a.ts`, `core/{a,b}.ts`, `stores/*.ts`, `c.ts` and `cli/`, for `<name>.ts` and `GET /v1/a`.',
      '```',
      'src/',
      '├─ core/    the domain',
      '│    a.ts b.ts    use cases; see docs/d.md',
      '└─ cli/     run.ts',
      '```',
      '## Where later parts go',
      '| Part | Where | Notes |',
      '| --- | --- | --- |',
      '| backup | `stores/backup`, `cli/run.ts` | like `core/e.ts` |',
    ].join('\n');
    const files = ['docs/d.md', 'src/cli/run.ts', 'src/core/a.ts', 'src/stores/nfs.ts'];
    expect(pathFaults([{ path: 'x.md', text }], files)).toEqual([
      'x.md: core/b.ts does not exist',
      'x.md: c.ts does not exist',
      'x.md: core/e.ts does not exist',
      'x.md: src/core/ has no b.ts',
      'x.md: cli/run.ts exists, so it is no later part',
    ]);
  });

  test('the page about benchmarks has a section for each benchmark', async () => {
    const programs = (await filesIn(root)).filter((file) => /^bench\/[\w-]+\.ts$/.test(file));
    const names = programs
      .filter((file) => read(file).includes('export const bench'))
      .map((file) => basename(file, '.ts'));
    expect(names).toContain('engine');
    const headings = [...read('docs/benchmarks.md').matchAll(/^## (.*)$/gm)].flatMap(([, heading = '']) =>
      heading.split(', '),
    );
    expect(names.filter((name) => !headings.includes(name))).toEqual([]);
  });

  test('DEPENDENCIES.txt lists the dependencies of package.json', () => {
    expect(dependencyFaults(read('DEPENDENCIES.txt'), JSON.parse(read('package.json')))).toEqual([]);
  });

  test('a dependency that is missing, has another version or was removed is found', () => {
    const list = 'here 1.0.0 MIT\nold 1.0.0 MIT\ngone 1.0.0 ISC\n    Why not ourselves: 2 reasons.\n';
    const manifest = { dependencies: { here: '1.0.0', old: '2.0.0' }, devDependencies: { '@new/one': '24.x' } };
    expect(dependencyFaults(list, manifest)).toEqual([
      'DEPENDENCIES.txt lacks old 2.0.0',
      'DEPENDENCIES.txt lacks @new/one 24.x',
      'DEPENDENCIES.txt has gone, package.json has not',
    ]);
  });
});
