import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { ownMounts } from '#testbed/mount-namespace.ts';
import { summaryLines } from './summary.ts';

const repository = dirname(import.meta.dirname);
const testImport = `import { beforeAll, describe, expect, test } from 'vitest';\nimport { lacks } from '#testbed/lacks.ts';\n`;

/** Runs the given test files like `npm test`, in a folder inside the repository, so that imports resolve. */
async function npmTest(
  files: Readonly<Record<string, string>>,
  env: Readonly<Record<string, string>> = {},
  args: readonly string[] = [],
  around: readonly string[] = [],
): Promise<{ readonly pid: number | undefined; readonly status: number | null; readonly lines: readonly string[] }> {
  await using root = await mkdtempDisposable(join(repository, '.stowage-test-'));
  mkdirSync(join(root.path, 'src'));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(root.path, 'src', name), testImport + text);
  const config = join(repository, 'vitest.config.ts');
  const program = join(repository, 'scripts', 'test.ts');
  const words = [...around, process.execPath, program, '--root', root.path, '--config', config, ...args];
  const child = spawn(words[0] ?? '', words.slice(1), {
    timeout: 50_000,
    stdio: ['ignore', 'pipe', 'ignore'],
    env: {
      ...process.env,
      STOWAGE_REQUIRE: '',
      STOWAGE_TESTBED_CACHE: join(tmpdir(), 'stowage-no-such-folder'),
      ...env,
    },
  });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  const [status] = (await once(child, 'close')) as [number | null];
  return { pid: child.pid, status, lines: output.trimEnd().split('\n') };
}

const passing = `test('right', () => expect(1).toBe(1));\n`;
const skipping = `describe.skipIf(lacks('node26'))('newer', () => { test('one', () => {}); test('two', () => {}); });\n`;

test('the summary names the fifteen slowest files, slowest first', ({ expect }) => {
  const milliseconds = Object.fromEntries(Array.from({ length: 20 }, (_, n) => [`${n}.test.ts`, n * 1000 + 40]));
  const outcome = { passed: 20, failed: 0, skipped: {}, milliseconds };
  const lines = summaryLines({ outcome, left: [], require: undefined }, []);
  expect(lines.slice(0, 3)).toEqual(['Slowest files, of 20:', '    19.0 s  19.test.ts', '    18.0 s  18.test.ts']);
  expect(lines.slice(15)).toEqual(['     5.0 s  5.test.ts', '', '20 passed, 0 failed, 0 skipped']);
});

describe.concurrent('npm test', () => {
  test('passes and ends with the counts', async ({ expect }) => {
    const { status, lines } = await npmTest({ 'a.test.ts': passing });
    expect([status, lines.at(-1)]).toEqual([0, '1 passed, 0 failed, 0 skipped']);
  });

  test('prints how long each file took', async ({ expect }) => {
    const { lines } = await npmTest({ 'a.test.ts': passing, 'b.test.ts': passing });
    const from = lines.indexOf('Slowest files, of 2:');
    const two = lines.slice(from + 1, from + 3).map((line) => /^ +\d+\.\d s {2}\S*src\/(.\.test\.ts)$/.exec(line)?.[1]);
    expect(two.toSorted()).toEqual(['a.test.ts', 'b.test.ts']);
  });

  test('names skipped tests, the reason, and the command that provides what is missing', async ({ expect }) => {
    const { status, lines } = await npmTest({
      'a.test.ts': passing + skipping,
      'b.test.ts': `${passing}test.skip('later', () => {});`,
    });
    expect([status, lines.at(-1)]).toEqual([0, '2 passed, 0 failed, 3 skipped']);
    const block = lines.slice(lines.indexOf('Skipped:'), -1).join('\n');
    expect(block).toContain('  node26: node26 26.10.0 is not in the cache folder\n');
    expect(block).toMatch(/ {4}tests: {3}\S*src\/a\.test\.ts \(2\)\n {4}provide: npm run testbed\n/);
    expect(block).toMatch(/b\.test\.ts: 1 test, without a stated reason/);
  });

  test('fails for a skipped test when everything is required', async ({ expect }) => {
    const files = { 'a.test.ts': `${passing}test.skip('later', () => {});` };
    const { status, lines } = await npmTest(files, { STOWAGE_REQUIRE: 'all' });
    expect([status, lines.at(-1)]).toEqual([1, '1 passed, 0 failed, 1 skipped']);
    expect(lines).toContain('STOWAGE_REQUIRE=all: a skipped test is a failure.');
  });

  test('fails for a missing component when everything is required', async ({ expect }) => {
    const { status, lines } = await npmTest(
      { 'a.test.ts': passing, 'b.test.ts': skipping },
      { STOWAGE_REQUIRE: 'all' },
    );
    expect([status, lines.at(-1)]).toEqual([1, '1 passed, 1 failed, 0 skipped']);
  });

  test.for<readonly [what: string, text: string, figures: string]>([
    ['a failed test', `test('wrong', () => expect(1).toBe(2));`, '1 passed, 1 failed, 0 skipped'],
    [
      'a failed hook',
      `describe('h', () => { beforeAll(() => { throw new Error('no'); }); test('x', () => {}); });`,
      '1 passed, 1 failed, 0 skipped',
    ],
    [
      'an unhandled rejection',
      `test('x', () => { void Promise.reject(new Error('lost')); });`,
      '2 passed, 1 failed, 0 skipped',
    ],
    ['a file that does not load', `throw new Error('no');`, '1 passed, 1 failed, 0 skipped'],
  ])('fails for %s', async ([, text, figures], { expect }) => {
    const { status, lines } = await npmTest({ 'a.test.ts': passing, 'b.test.ts': text });
    expect([status, lines.at(-1)]).toEqual([1, figures]);
  });

  test('fails when no test ran', async ({ expect }) => {
    const { status, lines } = await npmTest({});
    expect([status, lines.at(-1)]).toEqual([1, '0 passed, 0 failed, 0 skipped']);
  });

  test('passes arguments on to vitest, and does not count tests that were not requested', async ({ expect }) => {
    const { status, lines } = await npmTest({ 'a.test.ts': passing + skipping }, {}, ['-t', 'right']);
    expect([status, lines.at(-1)]).toEqual([0, '1 passed, 0 failed, 0 skipped']);
  });
});

describe.skipIf(lacks('linux', 'root', 'mount'))('npm test with tests that make mounts', () => {
  const at = `join(process.env['TMPDIR'] ?? '', 'at')`;
  const mounting = (...args: readonly string[]): string =>
    [
      `import { execFileSync } from 'node:child_process';`,
      `import { mkdirSync } from 'node:fs';`,
      `import { join } from 'node:path';`,
      `const run = (...words) => execFileSync(words[0], words.slice(1));`,
      `mkdirSync(${at});`,
      `test('mounts', () => { run('mount', ${args.map((arg) => `'${arg}'`).join(', ')}, ${at}); });`,
      '',
    ].join('\n');

  test.for<readonly [what: string, args: readonly string[], said: RegExp]>([
    ['a file system', ['-t', 'tmpfs', 'left'], /^ {2}\/.*\/at \(tmpfs of left\)$/],
    ['a bind', ['--bind', '/usr'], /^ {2}\/.*\/at \(\S+ of \S+\)$/],
  ])('fails for %s that is left, says where it is, and takes it along', async ([, args, said], { expect }) => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-left-'));
    const { status, lines } = await npmTest({ 'a.test.ts': mounting(...args) }, { TMPDIR: folder.path });
    expect([status, lines.at(-1)]).toEqual([1, '1 passed, 0 failed, 0 skipped']);
    const where = lines[lines.indexOf('Still mounted after the tests, which is a failure:') + 1];
    expect(where).toMatch(said);
    expect(where).toContain(folder.path);
    expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain(folder.path);
  });

  test('passes if the test removed its mount', async ({ expect }) => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-left-'));
    const text = `${mounting('-t', 'tmpfs', 'left')}test('unmounts', () => { run('umount', ${at}); });\n`;
    const { status, lines } = await npmTest({ 'a.test.ts': text }, { TMPDIR: folder.path });
    expect([status, lines.at(-1)]).toEqual([0, '2 passed, 0 failed, 0 skipped']);
  });

  test('ignores mounts that other programs make during the run', async ({ expect }) => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-others-'));
    for (const name of ['made', 'bound']) mkdirSync(join(folder.path, name));
    const others = [
      '"$@" &',
      'cd "$TMPDIR" && until [ -e running ]; do sleep 0.05; done',
      'mount -t tmpfs stowage-others made && mount --bind /usr bound && touch mounted',
      'wait "$!"',
    ].join('\n');
    const text = [
      `import { existsSync, readFileSync, writeFileSync } from 'node:fs';`,
      `import { setTimeout as delay } from 'node:timers/promises';`,
      `test('sees them', async () => {`,
      `  process.chdir(process.env['TMPDIR'] ?? '');`,
      `  writeFileSync('running', '');`,
      `  while (!existsSync('mounted')) await delay(20);`,
      `  expect(readFileSync('/proc/self/mountinfo', 'utf8')).toMatch(/\\/made [^]*\\/bound /);`,
      `});`,
    ].join('\n');
    const around = [...(ownMounts() ?? []), 'sh', '-c', others, 'sh'];
    const { status, lines } = await npmTest({ 'a.test.ts': text }, { TMPDIR: folder.path }, [], around);
    expect([status, lines.at(-1)]).toEqual([0, '1 passed, 0 failed, 0 skipped']);
  });

  test('ends when its caller sends a signal to the process that it started', async ({ expect }) => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-told-'));
    const text = [
      `import { readFileSync, writeFileSync } from 'node:fs';`,
      `test('receives SIGTERM', { timeout: 40_000 }, async () => {`,
      `  const above = Number(readFileSync(\`/proc/\${process.ppid}/stat\`, 'utf8').split(' ')[3]);`,
      `  writeFileSync(\`\${process.env['TMPDIR']}/pid\`, String(above));`,
      `  process.kill(above, 'SIGTERM');`,
      `  await new Promise(() => {});`,
      `});`,
    ].join('\n');
    const { pid, status, lines } = await npmTest({ 'a.test.ts': text }, { TMPDIR: folder.path });
    expect(readFileSync(join(folder.path, 'pid'), 'utf8')).toBe(String(pid));
    expect(lines).toContain('The test run ended before its figures were known.');
    expect([status, lines.at(-1)]).toEqual([1, '0 passed, 1 failed, 0 skipped']);
  });
});
