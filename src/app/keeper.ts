import { join } from 'node:path';
import process from 'node:process';
import { systemClock } from '#base/clock.ts';
import type { KeeperOptions } from '#cli/io.ts';
import { dataPathProgram as dataPath } from '#clients/data-path/keeper-starter.ts';
import { StowageError } from '#core/errors.ts';
import { checkKeeper, type KeeperCheck } from '#keeper/check.ts';
import { dataPathFlags } from '#keeper/node-flags.ts';
import { keeperCommand } from '#keeper/start-keeper.ts';
import { version } from './version.ts';

/**
 * `stowage keeper`: replaces this process with the keeper's program (execve), so that in a container the keeper is process 1. The keeper is
 * kept as small as possible. With `check` it queries the running keeper instead. Returns the exit status.
 */
export async function runKeeper({ folder, pod, check }: KeeperOptions, defaultFolder: string): Promise<number> {
  const keeperFolder = folder ?? defaultFolder;
  const socket = join(keeperFolder, 'sock');
  if (check !== undefined) return await checkRunningKeeper(socket, check);
  const { words, env } = keeperCommand(
    {
      enter: [],
      socket,
      program: dataPath,
      log: join(keeperFolder, 'log'),
      flags: dataPathFlags,
      env: { PATH: process.env['PATH'] ?? '', STOWAGE_VERSION: version },
    },
    pod ?? '',
  );
  process.stderr.write(`stowage keeper logs to ${join(keeperFolder, 'log')}\n`);
  process.execve?.(words[0], words, env);
  throw new StowageError('this system cannot run stowage keeper', {
    code: 'unsupported',
    reason: 'keeper-unsupported',
    action: 'Run it on Linux.',
  });
}

async function checkRunningKeeper(socket: string, what: KeeperCheck): Promise<number> {
  const why = await checkKeeper(socket, what, systemClock());
  if (why === undefined) return 0;
  throw new StowageError(`not ${what}: ${why}`, {
    code: 'unavailable',
    reason: 'keeper-not-ready',
    action: 'Wait until the keeper is ready. If it stays unready, check the log next to its socket.',
  });
}
