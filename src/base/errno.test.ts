import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { errnoOf, isErrno } from './errno.ts';
import { SystemError } from './linux/libc.ts';

test("errnoOf reads the code of Node's own errors and of SystemError", async () => {
  const missing: unknown = await readFile('/nonexistent/file').catch((thrown: unknown) => thrown);
  expect(errnoOf(missing)).toBe('ENOENT');
  expect(errnoOf(new SystemError('mmap', 12))).toBe('ENOMEM');
});

test.each([
  [new Error('no code')],
  [Object.assign(new Error('exit status'), { code: 1 })],
  [{ code: 'ENOENT' }],
  ['ENOENT'],
])('%o has no code', (thrown) => {
  expect(errnoOf(thrown)).toBe(undefined);
  expect(isErrno(thrown, 'ENOENT')).toBe(false);
});

test('isErrno compares with each given code', () => {
  const full = Object.assign(new Error('full'), { code: 'EDQUOT' });
  expect(isErrno(full, 'ENOSPC', 'EDQUOT')).toBe(true);
  expect(isErrno(full, 'ENOSPC')).toBe(false);
});
