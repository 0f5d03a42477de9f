import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { slowFiles } from './slow-files.ts';
import { runOrder } from './test-order.ts';

const file = (path: string, bytes = 300) => ({ path, bytes });
const paths = (files: readonly { readonly path: string }[]): string => files.map(({ path }) => path).join(' ');

test('half of the workers begin with slow files and the other half with quick ones, each with the longest first', () => {
  const files = [file('quick-1'), file('slow-1'), file('quick-2', 30_000), file('slow-2'), file('slow-3')];
  const slow = { 'slow-1': 5, 'slow-2': 90, 'slow-3': 60 };
  expect(paths(runOrder(files, slow, 2))).toBe('slow-2 quick-2 quick-1 slow-3 slow-1');
  expect(paths(runOrder(files, slow, 4))).toBe('slow-2 slow-3 quick-2 quick-1 slow-1');
});

test('one worker takes all files', () => {
  expect(paths(runOrder([file('a'), file('b'), file('c', 9_000)], { a: 100 }, 1))).toBe('a c b');
});

test('the slow files exist', () => {
  const repository = dirname(import.meta.dirname);
  expect(Object.keys(slowFiles).filter((path) => !existsSync(join(repository, path)))).toEqual([]);
});
