import { dirname } from 'node:path';
import { expect, test } from 'vitest';
import { dialectFaults, forbiddenPhrases, textsIn, withoutCode } from './dialect.ts';

test('the search covers sources, tests, scripts and documents, and leaves out the changelog and generated files', () => {
  const paths = textsIn(dirname(import.meta.dirname)).map(({ path }) => path);
  expect(paths).toEqual(
    expect.arrayContaining(['src/core/names.ts', 'scripts/check.ts', 'README.md', 'docs/designs/ports.md']),
  );
  const isLeftOut = (path: string): boolean =>
    /^CHANGELOG|^docs\/reference\/|\/generated\/|^scripts\/dialect/.test(path);
  expect(paths.filter(isLeftOut)).toEqual([]);
});

test('comments, strings and titles of a source file are searched, its code is not', () => {
  const source = [
    '// anew 1',
    "const anew = /`|'/g;",
    `test('it\\'s "anew" 2', () => anew(anew / 2, \`anew\n3\`)); /** anew 4`,
    ' */ const b = anew;',
  ].join('\n');
  const lines = withoutCode(source).split('\n');
  expect(lines.map((line) => line.replaceAll(/ +/g, ' ').trim())).toEqual([
    '// anew 1',
    "/`|'/",
    `'it\\'s "anew" 2' \`anew`,
    '3` /** anew 4',
    '*/',
  ]);
});

test('a forbidden phrase is reported with all its places, also if it continues on the next line of a comment', () => {
  const texts = [
    { path: 'a.ts', text: '// Made anew.\nconst a = 1;\n/**\n * The caller Is\n * told.\n */\n' },
    { path: 'b.md', text: 'renewed, anewly\n\nANEW\n' },
  ];
  expect(dialectFaults(texts, ['anew', 'is told', 'whoever'])).toEqual([
    '"anew" is not plain English:',
    '  a.ts:1',
    '  b.md:3',
    '"is told" is not plain English:',
    '  a.ts:4',
  ]);
});

test('the list has the phrases in lower case and in order', () => {
  expect(forbiddenPhrases).toEqual(forbiddenPhrases.map((phrase) => phrase.toLowerCase()).toSorted());
});
