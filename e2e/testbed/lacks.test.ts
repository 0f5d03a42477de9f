import { glob, mkdtempDisposable, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { repository } from './component.ts';
import { type ComponentName, component, componentNames } from './components.ts';
import { lacks, toolPath } from './lacks.ts';

const why = 'node26 26.10.0 is not in the cache folder';

beforeEach(() => {
  // An empty cache folder, whatever this machine has.
  vi.stubEnv('STOWAGE_TESTBED_CACHE', join(tmpdir(), 'stowage-no-such-folder'));
  vi.stubEnv('STOWAGE_REQUIRE', undefined);
  vi.stubEnv('STOWAGE_SKIPS', undefined);
});
afterEach(() => {
  vi.unstubAllEnvs();
});

test('a missing component is recorded with the reason, the command and the test file', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-lacks-'));
  const file = join(folder.path, 'skips');
  vi.stubEnv('STOWAGE_SKIPS', file);
  expect(lacks('node26')).toBe(true);
  expect(JSON.parse(await readFile(file, 'utf8'))).toEqual({
    component: 'node26',
    why,
    command: 'npm run testbed',
    file: 'e2e/testbed/lacks.test.ts',
  });
});

test.each(['all', 'node26', 'jq, node26'])('STOWAGE_REQUIRE=%s makes a missing component an error', (required) => {
  vi.stubEnv('STOWAGE_REQUIRE', required);
  expect(() => lacks('node26')).toThrow(`node26 is required: ${why}. Get it: npm run testbed`);
});

test('STOWAGE_REQUIRE with other names still skips the tests of a missing component', () => {
  vi.stubEnv('STOWAGE_REQUIRE', 'jq,docker');
  expect(lacks('node26')).toBe(true);
});

test('toolPath returns the path of a tool in the cache folder', () => {
  vi.stubEnv('STOWAGE_TESTBED_CACHE', '/elsewhere');
  expect(toolPath('schemathesis')).toMatch(/^\/elsewhere\/schemathesis-[0-9.]+\/bin\/schemathesis$/);
  expect(() => toolPath('jq')).toThrow('jq is not a tool of the cache folder');
});

test.each(componentNames)('the component %s has a description and a way to provide it', (name) => {
  const { what, command, packages, make } = component(name);
  expect(what).not.toBe('');
  expect(command).not.toBe('');
  // With this command, the test bed must be able to provide the component.
  if (command === 'npm run testbed') expect(packages ?? make).toBeDefined();
});

/** Programs that machines may lack, and test helpers that run them. */
const programs: readonly (readonly [ComponentName, RegExp])[] = [
  ...(['fio', 'git', 'jq', 'openssl', 'perl', 'python3', 'stress-ng'] as const).map(
    (name) => [name, new RegExp(`\\('${name}', \\[|\`${name} -`)] as const,
  ),
  ['openssl', /testing\/certificate\.ts'/],
  ['python3', /testing\/file-user\.ts'/],
];

test('a test that runs a program that some machines lack declares the component', async () => {
  const undeclared = new Set<string>();
  for await (const path of glob('{src,e2e,scripts,bench}/**/*.test.ts', { cwd: repository })) {
    const text = await readFile(join(repository, path), 'utf8');
    const declared = [...text.matchAll(/lacks\([^)]*\)|components = \[[^\]]*\]/g)].join();
    for (const [name, run] of programs)
      if (run.test(text) && !declared.includes(`'${name}'`)) undeclared.add(`${path}: ${name}`);
  }
  expect([...undeclared]).toEqual([]);
});
