import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { chartText, files, pageText } from './rbac.ts';
import { roles } from './rbac-rules.ts';

test('the roles of the chart are what the rules say: node scripts/rbac.ts', () => {
  expect(readFileSync(files.chart, 'utf8')).toBe(chartText());
});

test('the reference of rights is what the rules say: node scripts/rbac.ts', () => {
  expect(readFileSync(files.page, 'utf8')).toBe(pageText());
});

test('no role has a right twice, or all rights of a kind', () => {
  for (const { name, where, rules } of roles) {
    const rights = rules.flatMap(({ group, resource, names = [''], verbs }) =>
      verbs.flatMap((verb) => names.map((one) => [name, where, group, resource, one, verb].join(' '))),
    );
    expect(rights).toEqual([...new Set(rights)]);
    expect(rights.join('\n')).not.toContain('*');
  }
});

test('agents read, and do nothing else', () => {
  const verbs = roles
    .filter(({ account }) => account === 'stowage-agent')
    .flatMap(({ rules }) => rules)
    .flatMap((rule) => rule.verbs);
  expect(verbs.filter((verb) => !['get', 'list', 'watch'].includes(verb))).toEqual([]);
});
