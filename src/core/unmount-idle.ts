import type { Log, Scope } from '#base/log.ts';
import type { HeldTargets } from './containers.ts';
import { stowageError } from './errors.ts';
import type { Mount } from './model.ts';
import type { Mounter, Records } from './ports.ts';
import type { TargetBinding } from './target-binding.ts';

/** Unmounts idle volumes. Leaves volumes that are in use mounted, and returns them. */
export type UnmountIdle = (scope: Scope) => Promise<{
  readonly unmounted: number;
  readonly inUse: readonly { readonly mount: Mount; readonly why: string }[];
}>;

export interface UnmountIdleParts {
  readonly records: Pick<Records, 'mounts'>;
  readonly mounter: Pick<Mounter, 'unable'>;
  readonly engineMounts: () => HeldTargets;
  readonly log: Log;
}

export function createUnmountIdle(
  { records, mounter, engineMounts, log }: UnmountIdleParts,
  binding: Pick<TargetBinding, 'unmount'>,
): UnmountIdle {
  return async (scope) => {
    const busy: { mount: Mount; why: string }[] = [];
    let unmounted = 0;
    for (const mount of mounter.unable === undefined ? records.mounts.list() : []) {
      // Containers have the volume at other paths, so Stowage cannot see whether they use it.
      if (engineMounts().isHeld(mount.volumeId, mount.target)) {
        busy.push({ mount, why: 'containers use it' });
        continue;
      }
      // Pods also have the volume at other paths. A kubelet's staged mount stays until the kubelet unstages it.
      if (mount.user.kind === 'pod' || mount.user.kind === 'kubelet') {
        busy.push({ mount, why: `${mount.user.kind} ${mount.user.name} uses it` });
        continue;
      }
      try {
        await binding.unmount(mount, scope);
        unmounted++;
      } catch (thrown) {
        const why = stowageError(thrown).message;
        log.info('mount stays', { target: mount.target, why });
        busy.push({ mount, why });
      }
    }
    return { unmounted, inUse: busy };
  };
}
