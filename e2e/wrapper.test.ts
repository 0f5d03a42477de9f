import { spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { servingFlags } from '#app/serving-flags.ts';
import { repository } from '#testbed/component.ts';

const printScript =
  'console.log(JSON.stringify({ argv: process.argv.slice(1), cache: process.env.NODE_COMPILE_CACHE }));\n';

/** Installs Stowage: the wrapper, and a bundle that prints its arguments. */
function install(folder: string, bundle = true): void {
  mkdirSync(join(folder, 'bin'), { recursive: true });
  for (const name of ['stowage', 'kubectl-stowage'])
    copyFileSync(join(repository, 'bin', name), join(folder, 'bin', name));
  if (!bundle) return;
  mkdirSync(join(folder, 'dist'));
  writeFileSync(join(folder, 'dist', 'stowage.mjs'), printScript);
}

function fakeNode(folder: string, version: string): string {
  mkdirSync(join(folder, 'fake'));
  const file = join(folder, 'fake', 'node');
  writeFileSync(file, `#!/bin/sh\necho ${version}\n`);
  chmodSync(file, 0o755);
  return dirname(file);
}

function call(
  command: string,
  env: Readonly<Record<string, string>>,
  ...args: readonly string[]
): { status: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(command, args, { encoding: 'utf8', timeout: 20_000, env });
  return { status, out: stdout, err: stderr };
}

const system = '/usr/bin:/bin';
const ownNode = `${dirname(process.execPath)}:${system}`;

test('a symlink to a symlink finds the program, and arguments are passed on unchanged', async () => {
  await using home = await mkdtempDisposable(join(tmpdir(), 'stowage-wrapper-'));
  install(join(home.path, 'opt'));
  symlinkSync('opt/bin/stowage', join(home.path, 'first'));
  symlinkSync(join(home.path, 'first'), join(home.path, 'second'));
  const { status, out, err } = call(join(home.path, 'second'), { PATH: ownNode, HOME: home.path }, 'a b', "c'd", '');
  expect({ status, err }).toEqual({ status: 0, err: '' });
  expect(JSON.parse(out)).toEqual({
    argv: [join(home.path, 'opt/dist/stowage.mjs'), 'a b', "c'd", ''],
    cache: join(home.path, '.cache/stowage/compiled'),
  });
});

test('kubectl finds the program under the plugin’s name, and the program uses that name in its help', async () => {
  await using home = await mkdtempDisposable(join(tmpdir(), 'stowage-wrapper-'));
  install(join(home.path, 'opt'));
  writeFileSync(
    join(home.path, 'opt/dist/stowage.mjs'),
    'console.log(process.env.STOWAGE_PROGRAM, ...process.argv.slice(2));\n',
  );
  symlinkSync('opt/bin/kubectl-stowage', join(home.path, 'kubectl-stowage'));
  const pluginLink = join(home.path, 'kubectl-stowage');
  const { status, out, err } = call(pluginLink, { PATH: ownNode, HOME: home.path }, 'volume', 'list');
  expect({ status, out, err }).toEqual({ status: 0, out: `${pluginLink} volume list\n`, err: '' });
});

test.each([
  ['sources that were edited since the build', 60, 'src/app/main.ts'],
  ['the bundle that was built from them', -60, 'dist/stowage.mjs'],
])('a checkout runs %s, with the Node that npm installed', async (_what, seconds, program) => {
  await using home = await mkdtempDisposable(join(tmpdir(), 'stowage-wrapper-'));
  mkdirSync(join(home.path, 'src/app'), { recursive: true });
  writeFileSync(join(home.path, 'src/app/main.ts'), printScript);
  writeFileSync(join(home.path, 'package.json'), '{"type":"module"}');
  mkdirSync(join(home.path, 'node_modules/.bin'), { recursive: true });
  symlinkSync(process.execPath, join(home.path, 'node_modules/.bin/node'));
  install(home.path);
  const edited = Date.now() / 1000 + seconds;
  utimesSync(join(home.path, 'src/app/main.ts'), edited, edited);
  const fake = fakeNode(home.path, '20');
  const env = { PATH: `${fake}:${system}`, XDG_CACHE_HOME: join(home.path, 'cache') };
  const { out, err } = call(join(home.path, 'bin/stowage'), env, 'up');
  expect(err).toBe('');
  expect(JSON.parse(out)).toEqual({
    argv: [join(home.path, program), 'up'],
    cache: join(home.path, 'cache/stowage/compiled'),
  });
});

test('programs that are mostly idle start with flags for little memory, and NFS servers with flags for speed, even under `up`', async () => {
  await using home = await mkdtempDisposable(join(tmpdir(), 'stowage-wrapper-'));
  install(home.path);
  writeFileSync(join(home.path, 'dist', 'stowage.mjs'), 'console.log(JSON.stringify(process.execArgv));\n');
  const flags = (...args: readonly string[]): readonly string[] =>
    JSON.parse(call(join(home.path, 'bin/stowage'), { PATH: ownNode, HOME: home.path }, ...args).out);
  expect(flags('volume', 'list')).toContain('--optimize-for-size');
  const serving = flags('nfs', 'serve', '/srv/data');
  expect(serving).not.toContain('--optimize-for-size');
  expect(flags('--json', 'nfs', 'serve', '/srv/data')).toEqual(serving);
  expect(servingFlags(flags('up', '--nfs'))).toEqual(serving);
  // These programs shrink their heap when they are idle.
  for (const server of ['up', 'node', 'controller']) {
    expect(flags(server)).toContain('--expose-gc');
    expect(flags(server)).not.toContain('--optimize-for-size');
  }
});

test('an old Node is refused, and the error says what to do', async () => {
  await using home = await mkdtempDisposable(join(tmpdir(), 'stowage-wrapper-'));
  install(home.path);
  const fake = fakeNode(home.path, '20');
  const { status, err } = call(join(home.path, 'bin/stowage'), { PATH: `${fake}:${system}` }, 'up');
  expect(status).toBe(1);
  expect(err).toBe(
    `stowage: Node 24 or newer is needed (found version 20 at ${fake}/node).\n` +
      `Run 'npm ci' in ${home.path}: it brings one along on Linux. Elsewhere install Node 24 and put it on PATH.\n`,
  );
});

test('the wrapper says how to get a bundle if there is none', async () => {
  await using home = await mkdtempDisposable(join(tmpdir(), 'stowage-wrapper-'));
  install(home.path, false);
  const { status, err } = call(join(home.path, 'bin/stowage'), { PATH: ownNode }, 'up');
  expect(status).toBe(1);
  expect(err).toContain(`stowage: neither src/app/main.ts nor dist/stowage.mjs is in ${home.path}.`);
});
