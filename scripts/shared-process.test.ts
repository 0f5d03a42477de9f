import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { filesThatShareProcesses, needOwnProcess } from './shared-process.ts';

const repository = dirname(import.meta.dirname);

/** Calls that affect later files in the same process, or that see the effect of earlier ones. */
const changesProcess =
  /\bvi\.(mock|doMock|stubEnv|stubGlobal|useFakeTimers)\b|\bprocess\.(chdir|umask|memoryUsage)\b|delete process\.env|process\.env(\.\w+|\[[^\]]*\]) = |'\/proc\/self\/fd'/;

test('no test file that shares a process changes or counts state of the process', () => {
  const shared = filesThatShareProcesses(repository);
  expect(shared.length).toBeGreaterThan(100);
  const found = shared.filter((path) => changesProcess.test(readFileSync(join(repository, path), 'utf8')));
  expect(found, 'name these files in scripts/shared-process.ts').toEqual([]);
});

test.each([
  "vi.mock(import('./system.ts'))",
  "vi.stubEnv('NODE_NAME', 'worker-1');",
  'process.chdir(at);',
  "process.env['HOME'] = folder;",
  "readdirSync('/proc/self/fd').length",
])('a file that changes or counts state of its process is found: %s', (text) => {
  expect(text).toMatch(changesProcess);
});

test('the files that need a process of their own exist', () => {
  expect(needOwnProcess.filter((path) => !existsSync(join(repository, path)))).toEqual([]);
});
