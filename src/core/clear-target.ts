import type { Scope } from '#base/log.ts';
import type { Mounter } from './ports.ts';

/**
 * Takes away an empty folder or file at which one may mount and nothing is mounted. Anything else stays, and is no error. Call it
 * with the target's lock held.
 */
export function createClearTarget({
  mounter,
}: {
  readonly mounter: Mounter;
}): (target: string, scope: Scope) => Promise<void> {
  return async (target, scope) => {
    if (mounter.unable !== undefined) return;
    // To look at what is mounted there is to ask whoever serves it, who may be gone.
    if ((await mounter.list(scope)).some(({ at }) => at === target)) return;
    for (const access of ['filesystem', 'block'] as const) {
      const found = await mounter.inspectTarget(target, access, scope).catch(() => undefined);
      scope.signal.throwIfAborted();
      if (found?.existed === true && found.target === target) return await mounter.removeTarget(target, scope);
    }
  };
}
