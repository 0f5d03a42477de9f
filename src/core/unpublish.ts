import { createClearTarget } from './clear-target.ts';
import type { HeldTargets } from './containers.ts';
import type { Events } from './events.ts';
import { stageKey, targetKey } from './lock-keys.ts';
import type { VolumeId } from './model.ts';
import { heldByContainers, otherVolumeMounted, requireMounting } from './mount-errors.ts';
import { mountIntent, publishMountEvent } from './mount-operations.ts';
import { createMountPathResolver } from './mount-path.ts';
import type { Call, Operations } from './operations.ts';
import type { Mounter, Records, UnstageOptions } from './ports.ts';
import type { TargetBinding } from './target-binding.ts';

export interface UnpublishOptions extends UnstageOptions {
  /** The caller knows that no container engine needs the mount any more. */
  readonly ignoreEngineMounts?: boolean;
  /** As in PublishOptions: also removes an empty target that has no record, such as after a power cut. */
  readonly claimTarget?: boolean;
}

/**
 * Succeeds if nothing is mounted at the target. Throws 'conflict' if another volume is mounted there, 'in-use' if the mount is in use.
 * `volume` undefined: any volume.
 */
export type Unpublish = (
  target: string,
  volume: VolumeId | undefined,
  call: Call,
  options?: UnpublishOptions,
) => Promise<void>;

export interface UnpublishParts {
  readonly records: Pick<Records, 'mounts' | 'volumes'>;
  readonly mounter: Mounter;
  readonly operations: Operations;
  readonly events: Events;
  readonly engineMounts: () => HeldTargets;
}

export function createUnpublish(parts: UnpublishParts, binding: Pick<TargetBinding, 'unmount'>): Unpublish {
  const { records, operations, mounter } = parts;
  const resolvePath = createMountPathResolver(parts);
  const clearTarget = createClearTarget(parts);
  /** The volume at the target, after waiting for a mount that is in progress. */
  async function volumeAt(target: string, call: Call): Promise<VolumeId | undefined> {
    using _ = await operations.lock([targetKey(target)], call.signal);
    return records.mounts.byTarget(target)?.volumeId;
  }

  return async (path, expectedVolume, call, options) => {
    const trimmedPath = path.length > 1 ? path.replace(/\/+$/, '') : path;
    const isRecorded = (at: string): boolean => {
      const mountedVolume = records.mounts.byTarget(at)?.volumeId;
      return mountedVolume !== undefined && (expectedVolume === undefined || mountedVolume === expectedVolume);
    };
    const target = isRecorded(trimmedPath) ? trimmedPath : await resolvePath(trimmedPath, call);
    const volume = expectedVolume ?? (await volumeAt(target, call));
    // Lock before checking: a mount in progress must not appear after we reported that nothing is mounted.
    const stage = volume === undefined ? [] : [stageKey(volume)];
    using _ = await operations.lock([...stage, targetKey(target)], call.signal);
    const mount = records.mounts.byTarget(target);
    if (mount === undefined) return options?.claimTarget === true ? await clearTarget(target, call) : undefined;
    // The volume was mounted after volumeAt found nothing.
    if (volume === undefined) return;
    if (mount.volumeId !== volume) throw otherVolumeMounted(trimmedPath);
    if (options?.ignoreEngineMounts !== true && options?.force !== true && parts.engineMounts().isHeld(volume, target))
      throw heldByContainers(target);
    requireMounting(mounter);
    const store = records.volumes.byId(volume)?.store;
    const intent = { ...mountIntent('volume.unmount', parts, mount), ...(store && { store }) };
    await operations.run(intent, call, async (work) => {
      await binding.unmount(mount, work, options);
      return { value: undefined, announce: () => publishMountEvent(parts, 'unmounted', mount) };
    });
  };
}
