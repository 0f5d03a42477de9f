import { globSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';

/** Of processors, for whoever makes volumes. */
export interface CpuShare {
  /** A process that is no pod gets what they get. */
  join(pid: number): Promise<void>;
}

/** By one tree for each controller, and by one for all: what others have, times this. */
const times = 16;
const usual = { 'cpu.shares': 1_024, 'cpu.weight': 100 } as const;

/**
 * Pods of a cluster in `folder` before everything else. Elsewhere a control plane has machines of its own. Here it has the same few processors,
 * and each of its many threads counts as much as all pods together: what would be measured is how long they are kept waiting.
 */
export async function prioritizePods(folder: string): Promise<CpuShare> {
  const group = basename(folder);
  const found = globSync([`/sys/fs/cgroup/cpu*/${group}/cpu.shares`, `/sys/fs/cgroup/${group}/cpu.weight`]);
  if (found.length === 0) throw new Error('the pods have no group of their own');
  for (const file of found) await writeFile(file, `${times * usual[basename(file) as keyof typeof usual]}`);
  return {
    join: async (pid) => {
      for (const file of found) {
        const beside = join(dirname(file), 'beside');
        await mkdir(beside, { recursive: true });
        await writeFile(join(beside, 'cgroup.procs'), `${pid}`);
      }
    },
  };
}
