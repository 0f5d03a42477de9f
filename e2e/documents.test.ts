import { execFile } from 'node:child_process';
import { mkdtempDisposable, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';

const exec = promisify(execFile);

/** A command of a document. Without expected output, the command only has to succeed. */
interface Step {
  readonly command: string;
  readonly shown: string | undefined;
}

interface Session {
  /** The output of `stowage up` that the document shows. */
  readonly greeting: string | undefined;
  readonly steps: readonly Step[];
}

function sessionIn(text: string): Session {
  const blocks = [...text.matchAll(/^```(console|sh)\n(.*?)^```/gms)];
  const greeting = blocks.find(([, kind, body = '']) => kind === 'console' && body.startsWith('stowage ready'))?.[2];
  const steps = blocks.flatMap(([, kind, body = '']): Step[] => {
    if (kind === 'sh') {
      // The test bed has already installed and started Stowage.
      const lines = body.split('\n').filter((line) => line !== '' && !line.startsWith('npm '));
      return lines.map((command) => ({ command, shown: undefined }));
    }
    return body
      .split(/^\$ /m)
      .slice(1)
      .map((part) => {
        const [command = '', ...lines] = part.split('\n');
        return { command, shown: lines.join('\n') };
      });
  });
  return { greeting, steps };
}

/**
 * Runs the session in one shell, which has mounts of its own and empty folders at the paths of the document. The
 * repository is bound to another path, because it may be inside one of these folders.
 */
async function runSession(
  session: Session,
): Promise<{ readonly greeting: string; readonly outputs: readonly string[] }> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-documents-'));
  const outputFile = (what: string | number): string => join(folder.path, `${what}.txt`);
  const script = [
    'set -eu',
    'mkdir "$TOP/repository" && mount --bind "$REPOSITORY" "$TOP/repository" && cd "$TOP/repository"',
    'for covered in /mnt /srv /run /var/lib; do mount -t tmpfs none "$covered"; done',
    `bin/stowage up --config none --listen 127.0.0.1:0 > ${outputFile('greeting')} 2>&1 &`,
    'server=$!',
    `until grep -q '^Try next' ${outputFile('greeting')}; do kill -0 $server; sleep 0.1; done`,
    'PATH=$PWD/bin:$PATH',
    'set +e',
    ...session.steps.flatMap(({ command }, i) => [
      `{ ${command}\n} > ${outputFile(i)} 2>&1 < /dev/null`,
      `echo "status $?" >> ${outputFile(i)}`,
    ]),
    'kill $server; wait $server',
  ];
  await writeFile(join(folder.path, 'script'), `${script.join('\n')}\n`);
  const { PATH = '' } = process.env;
  const env = { PATH, HOME: folder.path, TOP: folder.path, REPOSITORY: repository, LC_ALL: 'C' };
  // All processes of the session end with the shell.
  const processes = ['--pid', '--fork', '--kill-child', '--mount-proc'];
  const args = [...slaveMounts, ...processes, 'bash', join(folder.path, 'script')];
  await exec('unshare', args, { env, timeout: 120_000 }).catch(async (cause: Error) => {
    throw new Error(`${cause.message}\n${await readFile(outputFile('greeting'), 'utf8')}`, { cause });
  });
  const outputs = session.steps.map((_, i) => readFile(outputFile(i), 'utf8'));
  return { greeting: await readFile(outputFile('greeting'), 'utf8'), outputs: await Promise.all(outputs) };
}

/** Text that differs in each run: ids, times, devices, host name, file system overhead. */
const variableParts: readonly (readonly [RegExp, string])[] = [
  [/\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g, 'UUID'],
  [/\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\.\d{3}Z| \d\d:\d\d UTC)/g, 'DATE'],
  [/ \d+s$/gm, ' AGE'],
  [/ on \S+$/gm, ' on NODE'],
  [/ +/g, ' '],
  [/^\/dev\/loop\d+ (\S+) \S+ \S+ \d+% /gm, 'DEVICE $1 USED FREE % '],
  [/^\S+ in (\d+ files?)$/gm, 'SIZE in $1'],
  [/ready in \d+\.\d s/g, 'ready in TIME'],
  [/127\.0\.0\.1:\d+/g, '127.0.0.1:PORT'],
];
const withoutVariableParts = (text: string): string =>
  variableParts.reduce((all, [pattern, word]) => all.replaceAll(pattern, word), text).trim();

/** The names in lines such as `ok  kernel: Linux 6.18`. If the document's list ends in …, only these names must occur. */
const namesIn = (text: string): string[] => [...text.matchAll(/^\w+ +([^:\n]+):/gm)].map(([, name = '']) => name);

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'xfs', 'jq'))('the session in a document', () => {
  test.each(['README.md', 'docs/getting-started.md'])(
    'works as shown: %s',
    async (document) => {
      const session = sessionIn(await readFile(join(repository, document), 'utf8'));
      expect(session.steps.length).toBeGreaterThan(5);
      const { greeting, outputs } = await runSession(session);
      if (session.greeting !== undefined) {
        // Some machines print more lines between the store and the command to try.
        const lines = withoutVariableParts(greeting).split('\n');
        for (const line of withoutVariableParts(session.greeting).split('\n')) expect(lines, greeting).toContain(line);
      }
      for (const [i, { command, shown }] of session.steps.entries()) {
        const [, output = '', status] = /^(.*)status (\d+)\n$/s.exec(outputs[i] ?? '') ?? [];
        if (shown === undefined) expect({ command, status, output }).toMatchObject({ command, status: '0' });
        else if (shown.includes('…')) expect(namesIn(output), command).toEqual(expect.arrayContaining(namesIn(shown)));
        else
          expect(`$ ${command}\n${withoutVariableParts(output)}`).toBe(`$ ${command}\n${withoutVariableParts(shown)}`);
      }
    },
    180_000,
  );
});
