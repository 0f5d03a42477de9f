import { mountUnable } from '#core/mount-errors.ts';
import type { Mounter } from '#core/ports.ts';

/** For machines that cannot mount: lists mounts, and refuses all other calls with an error that says what is needed. */
export function createUnableMounter(unable: NonNullable<Mounter['unable']>, list: Mounter['list']): Mounter {
  const refuse = async (): Promise<never> => {
    throw mountUnable(unable);
  };
  return {
    unable,
    list,
    isMounted: async (at, scope) => (await list(scope)).some((point) => point.at === at),
    bind: refuse,
    unmount: refuse,
    detach: refuse,
    openShared: refuse,
    closeShared: refuse,
    inspectTarget: refuse,
    resolvePath: refuse,
    makeTarget: refuse,
    removeTarget: refuse,
    reap: refuse,
  };
}
