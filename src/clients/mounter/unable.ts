import { mountUnable } from '#core/mount-errors.ts';
import type { Mounter } from '#core/ports.ts';

/** Where mounting is impossible everything else still works; whoever tries to mount is told what it takes. */
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
