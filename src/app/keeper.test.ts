import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, onTestFinished, test } from 'vitest';
import { errorCodes } from '#core/error-codes.ts';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { suspend } from '#testing/suspend.ts';

const exec = promisify(execFile);
const main = join(import.meta.dirname, 'main.ts');
const command = [process.execPath, '--disable-warning=ExperimentalWarning', main, 'keeper'];

const readOr = (file: string): string => (existsSync(file) ? readFileSync(file, 'utf8') : '');

test.skipIf(lacks('linux', 'root'))(
  'stowage keeper is process 1 of its container, and reports when it is ready',
  { timeout: 120_000 },
  async () => {
    const root = mkdtempSync(join(tmpdir(), 'stowage-first-'));
    const folder = join(root, 'keepers', 'host');
    mkdirSync(join(root, 'keepers'));
    const words = [
      '--pid',
      '--fork',
      ...slaveMounts,
      '--mount-proc',
      '--',
      ...command,
      '--folder',
      folder,
      '--pod',
      'test',
    ];
    const child = spawn('unshare', words, { stdio: 'ignore' });
    const ended = once(child, 'exit');
    const children = `/proc/${child.pid}/task/${child.pid}/children`;
    const first = await eventually(() => Number(readOr(children)), Boolean);
    onTestFinished(async () => {
      if (existsSync(`/proc/${first}`)) process.kill(first, 'SIGKILL');
      await ended;
      rmSync(root, { recursive: true });
    });
    const check = async (what: string, inside = true) => {
      const there = inside ? ['nsenter', `--target=${first}`, '--pid', '--mount', '--'] : [];
      const [file = '', ...args] = [...there, ...command, '--folder', folder, '--check', what];
      return await exec(file, args).then(
        () => ({ status: 0, said: '' }),
        ({ code, stderr }: { code: number; stderr: string }) => ({ status: code, said: stderr }),
      );
    };
    await eventually(
      () => check('ready'),
      ({ status }) => status === 0,
    );
    expect((await check('alive')).status).toBe(0);
    // The pid is the keeper's own, not that of a wrapper; the data path is its child.
    expect(readFileSync(`/proc/${first}/status`, 'utf8')).toMatch(/^NSpid:\t\d+\t1$/m);
    expect(readFileSync(`/proc/${first}/cmdline`, 'utf8')).toContain('stowage keeper');
    const zombies = readdirSync('/proc').filter((pid) => readOr(`/proc/${pid}/status`).includes(`PPid:\t${first}\n`));
    for (const pid of zombies) expect(readOr(`/proc/${pid}/status`)).not.toMatch(/^State:\tZ/m);
    // A client in another pid namespace gets no pid.
    await suspend(first);
    const hanging = await check('alive');
    expect(hanging).toMatchObject({ status: errorCodes.unavailable.exit, said: expect.stringContaining('answer') });
    process.kill(first, 'SIGCONT');
    process.kill(first, 'SIGTERM');
    expect(await ended).toEqual([0, null]);
    const [file = '', ...args] = [...command, '--folder', folder, '--check', 'ready'];
    await expect(exec(file, args)).rejects.toMatchObject({ stderr: expect.stringContaining('no keeper is in charge') });
  },
);
