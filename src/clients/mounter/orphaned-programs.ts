import { readdir, readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { readBounded } from './mountinfo.ts';
import { readProcess } from './read-process.ts';

/** Environment variable of every program that Stowage runs: the pid of the process that waits for it. */
export const runByVariable = 'STOWAGE_RUN_BY';
/** The state folder of the Stowage that runs it: programs of another Stowage are not waited for. */
export const runForVariable = 'STOWAGE_RUN_FOR';

/**
 * A killed Stowage leaves its last `mount` or `umount` running for a moment. If Stowage read the mount table before that program has
 * ended, it would repair mounts that are not broken, and miss the mount in progress. So the first read waits.
 */
export function createOrphanWait(clock: Clock, owner: string, proc = '/proc'): (scope: Scope) => Promise<void> {
  let hasWaited = false;
  return async (scope) => {
    for (let attempt = 0; !hasWaited && attempt < 50; attempt++) {
      const orphans = await listOrphans(owner, proc, clock);
      if (orphans.length === 0) break;
      scope.log.info('waiting for programs that a killed Stowage left running', { pids: orphans });
      await clock.sleep(100, scope.signal);
    }
    hasWaited = true;
  };
}

async function listOrphans(owner: string, proc: string, clock: Clock): Promise<readonly string[]> {
  const pids = (await readdir(proc)).filter((name) => /^\d+$/.test(name));
  const orphans: string[] = [];
  for (const pid of pids) if (await isOrphan(`${proc}/${pid}`, owner, clock)) orphans.push(pid);
  return orphans;
}

/** A process that does not answer may be any program, so the start does not wait for it. */
async function isOrphan(process: string, owner: string, clock: Clock): Promise<boolean> {
  const environment = await readProcess(process, () => readBounded(`${process}/environ`, 131_072), clock);
  const variables = environment?.split('\0') ?? [];
  const runByEntry = variables.find((variable) => variable.startsWith(`${runByVariable}=`));
  if (runByEntry === undefined || !variables.includes(`${runForVariable}=${owner}`)) return false;
  const status = await readProcess(process, () => readFile(`${process}/status`, 'utf8'), clock);
  const parent = /^PPid:\s*(\d+)$/m.exec(status ?? '')?.[1];
  // No parent: it ended meanwhile. The same parent: its Stowage still runs and waits for it.
  return parent !== undefined && runByEntry !== `${runByVariable}=${parent}`;
}
