import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { brokenLinks, dependencyFaults, documentsIn } from './documents.ts';

const root = dirname(import.meta.dirname);
const read = (path: string): string => readFileSync(join(root, path), 'utf8');

describe('the documentation', () => {
  test('the README has the two commands, each alone on a line', () => {
    const lines = read('README.md').split('\n');
    expect(lines).toContain('npm ci && npm start');
    expect(lines).toContain('npm ci && npm test');
  });

  test('every relative link leads somewhere', async () => {
    const documents = await documentsIn(root);
    expect(documents.map(({ path }) => path)).toEqual(
      expect.arrayContaining(['README.md', 'docs/reference/errors.md']),
    );
    expect(brokenLinks(documents, root)).toEqual([]);
  });

  test('a link to a file or heading that is not there is found, one in code is not a link', () => {
    const text = '# One Two\n\n[a](README.md) [b](#one-two) [c](nowhere.md) [d](#three) `[e](nowhere.md)`\n';
    expect(brokenLinks([{ path: 'x.md', text }], root)).toEqual([
      'x.md: nowhere.md does not exist',
      'x.md: #three has no such heading',
    ]);
  });

  test('DEPENDENCIES.txt lists what package.json asks for', () => {
    expect(dependencyFaults(read('DEPENDENCIES.txt'), JSON.parse(read('package.json')))).toEqual([]);
  });

  test('a dependency that is missing, of another version or gone is found', () => {
    const list = 'here 1.0.0 MIT\nold 1.0.0 MIT\ngone 1.0.0 ISC\n    Why not ourselves: 2 reasons.\n';
    const manifest = { dependencies: { here: '1.0.0', old: '2.0.0' }, devDependencies: { '@new/one': '24.x' } };
    expect(dependencyFaults(list, manifest)).toEqual([
      'DEPENDENCIES.txt lacks old 2.0.0',
      'DEPENDENCIES.txt lacks @new/one 24.x',
      'DEPENDENCIES.txt has gone, package.json has not',
    ]);
  });
});
