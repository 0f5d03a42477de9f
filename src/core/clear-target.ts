import type { Scope } from '#base/log.ts';
import type { Mounter } from './ports.ts';

/**
 * Removes the target if it is an empty directory or file that is a valid mount target with nothing mounted on it. Leaves anything else
 * alone, without an error. Call it with the target's lock held.
 */
export function createClearTarget({
  mounter,
}: {
  readonly mounter: Mounter;
}): (target: string, scope: Scope) => Promise<void> {
  return async (target, scope) => {
    if (mounter.unable !== undefined) return;
    // Never touch a mounted target: if the process or server behind the mount is gone, the call would hang.
    if ((await mounter.list(scope)).some(({ at }) => at === target)) return;
    for (const access of ['filesystem', 'block'] as const) {
      const inspected = await mounter.inspectTarget(target, access, scope).catch(() => undefined);
      scope.signal.throwIfAborted();
      if (inspected?.existed === true && inspected.target === target) return await mounter.removeTarget(target, scope);
    }
  };
}
