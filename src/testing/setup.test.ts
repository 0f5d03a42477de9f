import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';

test('tests, and the programs that they start, have the usual umask', () => {
  expect(process.umask()).toBe(0o022);
  expect(execFileSync('sh', ['-c', 'umask'], { encoding: 'utf8' }).trim()).toBe('0022');
});
