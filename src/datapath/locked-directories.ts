import { setImmediate as turn } from 'node:timers/promises';
import type { Clock } from '#base/clock.ts';
import type { Operations } from '#wire/fuse/operations.ts';

/**
 * Directories whose lock an application holds while it waits for our answer. To drop a dentry in such a directory, the
 * kernel would wait for that lock and so for us.
 */
export interface LockedDirectories {
  /** Wraps operations to track which are pending. */
  track(operations: Partial<Operations>): Partial<Operations>;
  /** Whether the kernel may be asked to drop a name in this directory now. */
  allows(directory: number): boolean;
  /** Resolves when it is worth asking again: after a request was answered. */
  nextAnswer(): Promise<void>;
}

type AnyOperation = (...args: never[]) => unknown;

/** The directories that each operation locks. */
const lockedByOperation: {
  readonly [K in keyof Operations]?: (...args: Parameters<Operations[K]>) => readonly number[];
} = {
  lookup: singleDirectory,
  symlink: singleDirectory,
  mknod: singleDirectory,
  mkdir: singleDirectory,
  create: singleDirectory,
  unlink: singleDirectory,
  rmdir: singleDirectory,
  readdir: singleDirectory,
  rename: (from, to) => [from.parent, to.parent],
  link: (_, parent) => [parent],
};
/** Operations that lock a directory if the node is one; on a file they may take long without anything being wrong. */
const lockedIfDirectory = {
  setattr: singleDirectory,
  fsyncdir: singleDirectory,
  setxattr: singleDirectory,
  removexattr: singleDirectory,
} as const;

function singleDirectory(node: number): readonly number[] {
  return [node];
}

/** A server that takes longer is slow or gone. */
const slowAnswerMs = 100;
/** A busy directory always has pending requests: after this time it is allowed anyway. */
const maxRefusalMs = 1_000;

export function createLockedDirectories(clock: Clock): LockedDirectories {
  const counts = new Map<number, number>();
  /** Start times, oldest first. */
  const startTimes = new Set<{ readonly at: number }>();
  let refusedSince: number | undefined;
  let answered: PromiseWithResolvers<void> | undefined;

  const add = (directories: readonly number[], by: number): void => {
    for (const directory of directories) {
      const count = (counts.get(directory) ?? 0) + by;
      if (count === 0) counts.delete(directory);
      else counts.set(directory, count);
    }
  };

  function trackOperation(operation: AnyOperation, lockedBy: AnyOperation, isSpeedMeasured: boolean): AnyOperation {
    return (...args) => {
      const result = operation(...args);
      // Synchronous answers need no tracking.
      if (!(result instanceof Promise)) return result;
      const directories = lockedBy(...args) as readonly number[];
      const start = { at: clock.elapsed() };
      add(directories, 1);
      if (isSpeedMeasured) startTimes.add(start);
      return result.finally(() => {
        add(directories, -1);
        startTimes.delete(start);
        answered?.resolve();
        answered = undefined;
      });
    };
  }

  function isSlow(now: number): boolean {
    const [oldest] = startTimes;
    return oldest !== undefined && now - oldest.at > slowAnswerMs;
  }

  return {
    track: (operations) => {
      const all = Object.entries(operations).map(([name, does]) => {
        const [named, other] = [
          lockedByOperation[name as keyof typeof lockedByOperation],
          lockedIfDirectory[name as 'setattr'],
        ];
        const lockedBy = named ?? other;
        return [
          name,
          lockedBy === undefined
            ? does
            : trackOperation(does as AnyOperation, lockedBy as AnyOperation, named !== undefined),
        ];
      });
      return Object.fromEntries(all) as Partial<Operations>;
    },
    allows: (directory) => {
      const now = clock.elapsed();
      const isIdle = !counts.has(directory);
      if (isSlow(now)) return false;
      if (isIdle) refusedSince = undefined;
      else refusedSince ??= now;
      return refusedSince === undefined || now - refusedSince >= maxRefusalMs;
    },
    nextAnswer: async () => {
      if (counts.size > 0) {
        answered ??= Promise.withResolvers<void>();
        await answered.promise;
      }
      // The answer is written by a later continuation of the same promise.
      await turn();
    },
  };
}
