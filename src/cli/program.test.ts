import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { errorCodes } from '#core/errors.ts';
import { needs } from '#testbed/needs.ts';
import { createProgram } from './program.ts';
import { cliReference } from './reference.ts';
import { run, scriptedServer, store, volume } from './scripted-server.ts';
import { walk } from './tree.ts';

const exec = promisify(execFile);
const program = createProgram({ version: '1.2.3', program: 'stowage' }, () => async () => undefined);
const commands = walk(program).map(({ path, command }) => ({ name: path.join(' '), path, command }));

describe('help', () => {
  test('the tree has the commands that are promised', () => {
    expect(commands.map(({ name }) => name)).toEqual(
      expect.arrayContaining([
        ...['up', 'status', 'doctor', 'mount', 'unmount', 'mounts', 'operations', 'events', 'completion', 'help'],
        ...['add', 'list', 'show', 'check', 'adopt', 'orphans', 'default', 'remove'].map((verb) => `store ${verb}`),
        ...[
          'create',
          'list',
          'show',
          'usage',
          'expand',
          'rename',
          'label',
          'delete',
          'restore',
          'trash list',
          'trash purge',
        ].map((verb) => `volume ${verb}`),
        ...['create', 'list', 'revoke'].map((verb) => `token ${verb}`),
        ...['list', 'show', 'cancel'].map((verb) => `operations ${verb}`),
      ]),
    );
  });

  test.each(commands)('stowage $name --help says what it does and has an example', async ({ path, command }) => {
    const { status, stdout, stderr } = await run(undefined, [...path, '--help']);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(command.description()).toMatch(/\S/);
    expect(command.examples.length).toBeGreaterThan(0);
    for (const { line } of command.examples) expect(stdout).toContain(`\n  ${line}\n`);
  });

  test.each(commands.flatMap(({ name, command }) => command.examples.map(({ line }) => ({ name, line }))))(
    'the example “$line” of $name is understood',
    async ({ line }) => {
      const words = /.*stowage ([^|>)]*)/.exec(line)?.[1] ?? '';
      const argv = (words.match(/'[^']*'|"[^"]*"|\S+/g) ?? []).map((word) => word.replace(/^['"]|['"]$/g, ''));
      // Nobody answers at that socket: anything but a misunderstanding is fine.
      const { stderr } = await run({ socket: '/nonexistent/s.sock' }, argv);
      expect(stderr).not.toMatch(/unknown|missing required|too many/);
    },
  );

  test('exit codes are documented, all of them', async () => {
    const { stdout, status } = await run(undefined, ['help', 'exit-codes']);
    expect(status).toBe(0);
    for (const [code, { exit }] of Object.entries(errorCodes)) {
      expect(stdout.split('\n').some((line) => line.trim().startsWith(`${exit} `) && line.includes(code))).toBe(true);
    }
  });

  test('help for a command is its --help, and for nonsense an error', async () => {
    const [asked, option] = [
      await run(undefined, ['help', 'volume', 'create']),
      await run(undefined, ['volume', 'create', '--help']),
    ];
    expect(asked).toEqual(option);
    expect((await run(undefined, ['help', 'nonsense'])).status).toBe(2);
  });

  test('--version, and no command at all', async () => {
    expect(await run(undefined, ['--version'])).toEqual({ status: 0, stdout: '1.2.3\n', stderr: '' });
    const { status, stdout, stderr } = await run(undefined, []);
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
    expect(stderr).toContain('Usage: stowage');
  });

  test('the reference has a section for every command and every exit status', () => {
    const page = cliReference();
    for (const { name } of commands.slice(1)) expect(page).toMatch(new RegExp(`^#+ stowage ${name}$`, 'm'));
    expect(page).toContain('| 130 | Cancelled | `canceled` |');
    expect(page).not.toContain('__complete');
  });
});

describe('completion', () => {
  test('an option takes a value in every command or in none, for the scripts know it by its name alone', () => {
    const kinds = new Map<string, boolean>();
    for (const option of commands.flatMap(({ command }) => command.options)) {
      const takes = option.required || option.optional;
      expect(kinds.get(option.long ?? '') ?? takes).toBe(takes);
      kinds.set(option.long ?? '', takes);
    }
  });

  for (const shell of ['bash', 'zsh', 'fish'] as const) {
    test.skipIf(shell !== 'bash' && needs(shell))(`the script for ${shell} is valid`, async () => {
      const folder = await mkdtemp(join(tmpdir(), 'stowage-cli-'));
      try {
        const { stdout, status } = await run(undefined, ['completion', shell]);
        expect(status).toBe(0);
        await writeFile(join(folder, 'script'), stdout);
        await exec(shell, ['-n', join(folder, 'script')], { timeout: 10_000 });
      } finally {
        await rm(folder, { recursive: true });
      }
    });
  }

  test('in bash completes commands, options, choices, and names from the server', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'stowage-cli-'));
    try {
      const { stdout: script } = await run(undefined, ['completion', 'bash']);
      await writeFile(join(folder, 'stowage'), '#!/bin/sh\necho "$4"/one; echo "$4"/two\n', { mode: 0o755 });
      await writeFile(
        join(folder, 'ask'),
        `${script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _stowage; printf '%s\\n' "\${COMPREPLY[@]}"\n`,
      );
      const env = { PATH: `${folder}${delimiter}${process.env['PATH'] ?? ''}` };
      const after = async (...words: string[]): Promise<string[]> => {
        const { stdout } = await exec('bash', [join(folder, 'ask'), 'stowage', ...words], { env, timeout: 10_000 });
        return stdout.trim().split('\n');
      };
      expect(await after('vol')).toEqual(['volume']);
      expect(await after('volume', 'trash', '')).toEqual(['list', 'purge']);
      expect(await after('--json', 'volume', 'create', '--si')).toEqual(['--size']);
      expect(await after('volume', 'create', 'x', '--store', '')).toEqual(['stores/one', 'stores/two']);
      expect(await after('volume', 'rm', 'a', 'volumes/t')).toEqual(['volumes/two']);
      expect(await after('token', 'create', 'x', '--role', '')).toEqual(['viewer', 'user', 'admin']);
      expect(await after('operations', '--wa')).toEqual(['--watch']);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  test('names that mean something to a shell are left out, and nothing is ever said', async () => {
    await using server = await scriptedServer({
      'GET /v1/volumes': [
        200,
        { items: [volume('local', 'good'), volume('local', '$(reboot)'), volume('local', 'a b')], next: null },
      ],
      'GET /v1/stores': [200, { items: [store('-x'), store('local')], next: null }],
    });
    expect(await run(server, ['__complete', 'volumes'])).toEqual({ status: 0, stdout: 'local/good\n', stderr: '' });
    expect(await run(server, ['__complete', 'stores'])).toEqual({ status: 0, stdout: 'local\n', stderr: '' });
    expect(await run(server, ['__complete', 'nonsense'])).toEqual({ status: 0, stdout: '', stderr: '' });
    expect(await run({ socket: '/nonexistent/s.sock' }, ['__complete', 'volumes'])).toEqual({
      status: 0,
      stdout: '',
      stderr: '',
    });
  });
});
