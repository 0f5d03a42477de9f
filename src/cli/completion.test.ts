import { execFile } from 'node:child_process';
import { mkdir, mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { commandTree } from './command-tree.ts';
import { createProgram } from './program.ts';
import { operation, run, scriptedServer, store, volume } from './scripted-server.ts';

const exec = promisify(execFile);

test('an option takes a value in all commands or in none, since the scripts know options by name only', () => {
  const program = createProgram({ version: '', program: 'stowage' }, () => async () => undefined);
  const kinds = new Map<string, boolean>();
  for (const option of commandTree(program).flatMap(({ command }) => command.options)) {
    const takes = option.required || option.optional;
    expect(kinds.get(option.long ?? '') ?? takes).toBe(takes);
    kinds.set(option.long ?? '', takes);
  }
});

test('names with special characters of shells are left out, and errors are never printed', async () => {
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

/** How to run each shell with the script and print the completions of a line. */
const shells: Readonly<Record<'bash' | 'zsh' | 'fish', Readonly<Record<string, string>>>> = {
  bash: {
    ask: `source "$SCRIPTS/script"
line="stowage $1"
read -ra COMP_WORDS <<< "$line"
[[ $line == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((\${#COMP_WORDS[@]} - 1))
_stowage
printf '%s\\n' "\${COMPREPLY[@]}"
`,
  },
  // zsh completes only on a terminal, so it gets one. compadd receives every match.
  zsh: {
    ask: `zmodload zsh/zpty
zpty inner zsh -f -i
zpty -w inner "source $SCRIPTS/inner"
zpty -w -n inner "stowage $1"$'\\t'
while zpty -r inner said; do :; done
[[ ! -e $SCRIPTS/found ]] || { cat $SCRIPTS/found; rm $SCRIPTS/found }
`,
    inner: `autoload -Uz compinit && compinit -u -D
source $SCRIPTS/script
compadd() {
  if [[ \${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then builtin compadd "$@"; return; fi
  local -a hits
  builtin compadd -A hits "$@"
  print -rl -- $hits >> $SCRIPTS/found
}
comppostfuncs=(exit)
`,
  },
  fish: { ask: `source $SCRIPTS/script; complete -C "stowage $argv[1]"\n` },
};
const flags: Readonly<Record<string, readonly string[]>> = { zsh: ['-f'], fish: ['--no-config'] };

/** A quick replacement for the program, which takes a second to start. */
const program = `#!/bin/sh
[ "$1 $2 $3" = '--timeout 2s __complete' ] && [ "\${5:---socket}" = --socket ] && cat "\${6:-$ANSWERS}/$4"
`;
const asked = ['stores', 'volumes', 'mounts', 'operations', 'running'];

for (const shell of ['bash', 'zsh', 'fish'] as const) {
  describe.skipIf(shell !== 'bash' && lacks(shell))(`in ${shell}`, () => {
    let scripts: Awaited<ReturnType<typeof mkdtempDisposable>>;
    let answers: string;

    beforeAll(async () => {
      await using server = await scriptedServer({
        'GET /v1/stores': [200, { items: [store('images'), store('local')], next: null }],
        'GET /v1/volumes': [200, { items: [volume('local', 'one'), volume('local', 'two')], next: null }],
        'GET /v1/mounts': [200, { items: [{ target: '/mnt/one' }, { target: '/mnt/two' }], next: null }],
        'GET /v1/operations': [
          200,
          { items: [operation('running', { id: 'op1-now' }), operation('done', { id: 'op1-past' })], next: null },
        ],
      });
      scripts = await mkdtempDisposable(join(tmpdir(), 'stowage-completion-'));
      answers = join(scripts.path, 'answers');
      await mkdir(answers);
      for (const what of asked) await writeFile(join(answers, what), (await run(server, ['__complete', what])).stdout);
      const files = { ...shells[shell], script: (await run(undefined, ['completion', shell])).stdout };
      for (const [name, text] of Object.entries(files)) await writeFile(join(scripts.path, name), text);
      await writeFile(join(scripts.path, 'stowage'), program, { mode: 0o755 });
    });

    afterAll(() => scripts.remove());

    async function after(words: string, said = answers): Promise<string[]> {
      const path = `${scripts.path}${delimiter}${process.env['PATH'] ?? ''}`;
      const env = { PATH: path, HOME: scripts.path, SCRIPTS: scripts.path, TERM: 'xterm', ANSWERS: said };
      const args = [...(flags[shell] ?? []), join(scripts.path, 'ask'), words];
      const { stdout } = await exec(shell, args, { env, timeout: 30_000 });
      // fish adds a description to each completion.
      const found = stdout.split('\n').map((line) => line.replace(/\t.*/, ''));
      return found.filter((word) => word !== '').sort();
    }

    test('completes commands, options and choices', async () => {
      expect(await after('vol')).toEqual(['volume']);
      expect(await after('volume trash ')).toEqual(['list', 'purge']);
      expect(await after('--json volume create --si')).toEqual(['--size']);
      expect(await after('operations --wa')).toEqual(['--watch']);
      expect(await after('token create x --role ')).toEqual(['admin', 'user', 'viewer']);
    });

    test('completes the topics of help', async () => {
      const topics = await after('help ');
      expect(topics).toEqual(expect.arrayContaining(['up', 'volume', 'store', 'exit-codes']));
      expect(await after('help volume tr')).toEqual(['trash']);
      expect(await after('help volume trash ')).toEqual(['list', 'purge']);
      expect(await after('help volume create ')).toEqual([]);
    });

    test('completes names from the server', async () => {
      expect(await after('volume create x --store ')).toEqual(['images', 'local']);
      expect(await after('volume rm a local/t')).toEqual(['local/two']);
      expect(await after('unmount ')).toEqual(['/mnt/one', '/mnt/two']);
      expect(await after('unmount local/one /mnt/o')).toEqual(['/mnt/one']);
    });

    test('completes all operations for show, and running ones for cancel', async () => {
      expect(await after('operations show ')).toEqual(['op1-now', 'op1-past']);
      expect(await after('operations cancel ')).toEqual(['op1-now']);
    });

    test('completes names from the server that the preceding options select', async () => {
      const nobody = join(scripts.path, 'nobody');
      expect(await after('store show ', nobody)).toEqual([]);
      expect(await after(`--socket ${answers} store show `, nobody)).toEqual(['images', 'local']);
    });
  });
}
