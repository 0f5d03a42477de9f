import { StowageError } from '#core/errors.ts';

/**
 * One call at a time for one thing: a second, which is mostly the first one repeated, is told that it is being done. It ends
 * when the work does, not when somebody stops waiting for it.
 */
export type RunExclusive = <T>(key: string, work: () => Promise<T>) => Promise<T>;

export function createRunExclusive(): RunExclusive {
  const keys = new Set<string>();
  return async (key, work) => {
    if (keys.has(key))
      throw new StowageError('the same is being done already', {
        code: 'busy',
        reason: 'csi-underway',
        action: 'Wait for it: repeat the call in a moment.',
      });
    keys.add(key);
    try {
      return await work();
    } finally {
      keys.delete(key);
    }
  };
}
