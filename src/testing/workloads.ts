import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';

const exec = promisify(execFile);
const model = join(import.meta.dirname, 'model-workload.ts');

interface RunOptions {
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
  /** In milliseconds. */
  readonly timeout?: number;
}

/** A program that must end well, and soon enough; killed otherwise. */
export const run = (file: string, args: readonly string[], more: RunOptions = {}) =>
  exec(file, args, { timeout: 100_000, killSignal: 'SIGKILL', maxBuffer: 2 ** 24, ...more });

/** Writes at random, reads at random and compares; fails at the first byte that is another. In `folder` fio may leave notes. */
export async function runFioVerify(at: string, folder: string, ...more: readonly string[]): Promise<void> {
  const args = [
    '--name=x',
    `--directory=${at}`,
    '--rw=randrw',
    '--bs=4k-256k',
    '--size=6m',
    '--verify=crc32c',
    '--verify_fatal=1',
    '--ioengine=psync',
    '--numjobs=2',
    '--loops=2',
    '--fsync=20',
    '--group_reporting',
    '--minimal',
    '--verify_state_save=0',
    ...more,
  ];
  await run('fio', args, { cwd: folder });
}

/** Changes names, files and directories in an empty folder, each answer compared with a model of it. */
export async function runModelWorkload(
  at: string,
  seed: number,
  changes: number,
  more: RunOptions = {},
): Promise<void> {
  await run(process.execPath, [model, at, String(seed), String(changes)], more);
}
