/** Waiting keys, by group. Groups take turns, and no group can have all workers. */
export interface FairGroups {
  add(group: string, key: string): void;
  /** Removes a waiting key. */
  remove(group: string, key: string): void;
  /** Takes a key of the next group that is below its limit, and moves that group to the end. */
  take(): { readonly group: string; readonly key: string } | undefined;
  /** The work on a key that was taken from this group has ended. */
  finish(group: string): void;
  readonly waiting: number;
  readonly running: number;
}

export interface FairGroupsOptions {
  /** The limit for all groups together. A group without a running key may always exceed it by one. */
  readonly workers: number;
  /** The limit for one group. */
  readonly workersPerGroup: number;
}

interface Group {
  readonly waiting: Set<string>;
  running: number;
}

export function createFairGroups({ workers, workersPerGroup }: FairGroupsOptions): FairGroups {
  /** In round-robin order. */
  const groups = new Map<string, Group>();
  let running = 0;

  const dropIfEmpty = (name: string, group: Group): void => {
    if (group.waiting.size === 0 && group.running === 0) groups.delete(name);
  };

  return {
    add: (name, key) => {
      const group = groups.get(name) ?? { waiting: new Set(), running: 0 };
      groups.set(name, group);
      group.waiting.add(key);
    },
    remove: (name, key) => {
      const group = groups.get(name);
      if (group === undefined) return;
      group.waiting.delete(key);
      dropIfEmpty(name, group);
    },
    take: () => {
      for (const [name, group] of groups) {
        const mayRun = group.running === 0 || (running < workers && group.running < workersPerGroup);
        const [key] = group.waiting;
        if (!mayRun || key === undefined) continue;
        group.waiting.delete(key);
        group.running++;
        running++;
        groups.delete(name);
        groups.set(name, group);
        return { group: name, key };
      }
      return undefined;
    },
    finish: (name) => {
      const group = groups.get(name);
      if (group === undefined) return;
      group.running--;
      running--;
      dropIfEmpty(name, group);
    },
    get waiting() {
      let all = 0;
      for (const { waiting } of groups.values()) all += waiting.size;
      return all;
    },
    get running() {
      return running;
    },
  };
}
