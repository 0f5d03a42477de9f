import { describe, expect, test } from 'vitest';
import { errorCodes } from '#core/error-codes.ts';
import { commandTree } from './command-tree.ts';
import { createProgram } from './program.ts';
import { cliReference } from './reference.ts';
import { run } from './scripted-server.ts';

const nobody = (): Promise<never> => Promise.reject(new Error('nobody answers'));
const program = createProgram({ version: '1.2.3', program: 'stowage' }, () => async () => undefined);
const commands = commandTree(program).map(({ path, command }) => ({ name: path.join(' '), path, command }));

describe('help', () => {
  test('the tree has all documented commands', () => {
    expect(commands.map(({ name }) => name)).toEqual(
      expect.arrayContaining([
        'up',
        'node',
        'nfs serve',
        'keeper',
        'status',
        'doctor',
        'mount',
        'unmount',
        'mounts',
        'operations',
        'events',
        'completion',
        'help',
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

  test.each(commands)('stowage $name --help has a description and an example', async ({ path, command }) => {
    const { status, stdout, stderr } = await run(undefined, [...path, '--help']);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(command.description()).toMatch(/\S/);
    expect(command.examples.length).toBeGreaterThan(0);
    for (const { line } of command.examples) expect(stdout).toContain(`\n  ${line}\n`);
  });

  test.each(commands.flatMap(({ name, command }) => command.examples.map(({ line }) => ({ name, line }))))(
    'the example “$line” of $name can be parsed',
    async ({ line }) => {
      const calls = [...line.matchAll(/(xargs -r )?(kubectl )?stowage ([^|>)]*)/g)];
      expect(calls).not.toEqual([]);
      for (const [, piped, kubectl, words = ''] of calls) {
        const given = (words.match(/'[^']*'|"[^"]*"|\S+/g) ?? []).map((word) => word.replace(/^['"]|['"]$/g, ''));
        const argv = piped === undefined ? given : [...given, 'piped'];
        // No server answers there: any error but a usage error is fine.
        const { stderr } =
          kubectl === undefined
            ? await run({ socket: '/nonexistent/s.sock' }, argv)
            : await run(undefined, argv, { injected: { program: 'kubectl stowage', cluster: nobody } });
        expect(stderr).not.toMatch(/unknown|missing required|too many/);
      }
    },
  );

  test('all exit codes are documented', async () => {
    const { stdout, status } = await run(undefined, ['help', 'exit-codes']);
    expect(status).toBe(0);
    for (const [code, { exit }] of Object.entries(errorCodes)) {
      expect(stdout.split('\n').some((line) => line.trim().startsWith(`${exit} `) && line.includes(code))).toBe(true);
    }
  });

  test('help for a command prints its --help, and fails for an unknown command', async () => {
    const [asked, option] = [
      await run(undefined, ['help', 'volume', 'create']),
      await run(undefined, ['volume', 'create', '--help']),
    ];
    expect(asked).toEqual(option);
    expect((await run(undefined, ['help', 'nonsense'])).status).toBe(2);
  });

  test('--version prints the version, and no command prints the help', async () => {
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
