import { StowageError } from '#core/errors.ts';

/**
 * Runs one call at a time for each key. A second call, usually a retry of the first, fails with ABORTED. The key is released when the work
 * ends, not when the caller stops waiting.
 */
export type RunExclusive = <T>(key: string, work: () => Promise<T>) => Promise<T>;

export function createRunExclusive(): RunExclusive {
  const keys = new Set<string>();
  return async (key, work) => {
    if (keys.has(key))
      throw new StowageError('the same operation is already in progress', {
        code: 'busy',
        reason: 'csi-underway',
        action: 'Retry the call in a moment.',
      });
    keys.add(key);
    try {
      return await work();
    } finally {
      keys.delete(key);
    }
  };
}
