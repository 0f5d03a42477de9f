import { globSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';

/** A share of the CPU for the process that makes volumes. */
export interface CpuShare {
  /** Gives a process outside of pods the same CPU share as pods. */
  join(pid: number): Promise<void>;
}

/** The weight relative to other processes, for cgroup v1 and v2. */
const weightFactor = 16;
const defaultWeights = { 'cpu.shares': 1_024, 'cpu.weight': 100 } as const;

/**
 * Gives the pods of the cluster in `folder` priority over all other processes. A real control plane has machines of its
 * own. Here it shares a few CPUs with the pods, and each of its many threads has as much weight as all pods together:
 * the benchmark would measure how long pods wait for a CPU.
 */
export async function prioritizePods(folder: string): Promise<CpuShare> {
  const group = basename(folder);
  const found = globSync([`/sys/fs/cgroup/cpu*/${group}/cpu.shares`, `/sys/fs/cgroup/${group}/cpu.weight`]);
  if (found.length === 0) throw new Error('the pods have no group of their own');
  for (const file of found)
    await writeFile(file, `${weightFactor * defaultWeights[basename(file) as keyof typeof defaultWeights]}`);
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
