import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';

const exec = promisify(execFile);
const model = join(import.meta.dirname, 'model-workload.ts');

interface RunOptions {
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
  /** Milliseconds. */
  readonly timeout?: number;
}

/** Runs a program. Throws if it fails, and kills it if it exceeds the timeout. */
export const run = (file: string, args: readonly string[], more: RunOptions = {}) =>
  exec(file, args, { timeout: 100_000, killSignal: 'SIGKILL', maxBuffer: 2 ** 24, ...more });

/**
 * Writes and reads at random with fio, which fails at the first wrong byte. fio may write its own files into `folder`.
 */
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

/** Changes names, files and directories in an empty folder, and compares each answer with a model. */
export async function runModelWorkload(
  at: string,
  seed: number,
  changes: number,
  more: RunOptions = {},
): Promise<void> {
  await run(process.execPath, [model, at, String(seed), String(changes)], more);
}
