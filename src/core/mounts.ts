import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import type { Catalogue } from './catalogue.ts';
import type { ContainerReferences } from './container-references.ts';
import type { HeldTargets } from './containers.ts';
import type { Events } from './events.ts';
import { createInUseCheck, type InUseCheck } from './in-use-check.ts';
import type { NodeName, VolumeId } from './model.ts';
import { createMountPathResolver, type ResolveMountPath } from './mount-path.ts';
import { createMountQueries, type MountQueries } from './mount-queries.ts';
import type { Operations } from './operations.ts';
import { createPublish, type Publish } from './publish.ts';
import { createReconcileMounts, type ReconcileMounts } from './reconcile-mounts.ts';
import { createRepairMounts, type RepairMounts } from './repair-mounts.ts';
import { createReplayMounts, type ReplayMounts } from './replay-mounts.ts';
import { createStagedVolumeChanges, type StagedVolumeChanges } from './staged-volume-changes.ts';
import type { Stores } from './stores.ts';
import { createTargetBinding } from './target-binding.ts';
import { createUnmountIdle, type UnmountIdle } from './unmount-idle.ts';
import { createUnpublish, type Unpublish } from './unpublish.ts';
import { createUsePublisher } from './use-publisher.ts';
import { createVolumeStaging, type VolumeStagingParts } from './volume-staging.ts';

/** Mounts volumes on this node and unmounts them. Each part is in a file of its own. */
export interface Mounts extends MountQueries, InUseCheck, StagedVolumeChanges {
  readonly publish: Publish;
  readonly unpublish: Unpublish;
  readonly resolvePath: ResolveMountPath;
  readonly reconcile: ReconcileMounts;
  readonly replay: ReplayMounts;
  readonly repair: RepairMounts;
  readonly unmountIdle: UnmountIdle;
  /** Renews this host's use records on the stores. */
  renewUses(scope: Scope): Promise<void>;
  /** Updates the volume's use record after its users changed. Never throws. */
  updateUses(volume: VolumeId, scope: Scope): Promise<void>;
}

export interface MountParts extends VolumeStagingParts {
  readonly stores: () => Stores;
  readonly catalogue: Catalogue;
  readonly operations: Operations;
  readonly events: Events;
  readonly clock: Clock;
  readonly log: Log;
  readonly node: NodeName;
  readonly instance: string;
  readonly engineMounts: () => HeldTargets;
  readonly references: () => Pick<ContainerReferences, 'query'>;
}

export function createMounts(parts: MountParts): Mounts {
  const staging = createVolumeStaging(parts);
  const uses = createUsePublisher(parts);
  const binding = createTargetBinding(parts, staging, uses);
  return {
    ...createMountQueries(parts, staging),
    ...createInUseCheck(parts, staging, uses),
    ...createStagedVolumeChanges(parts, staging, uses),
    publish: createPublish(parts, staging, binding, uses),
    unpublish: createUnpublish(parts, binding),
    resolvePath: createMountPathResolver(parts),
    reconcile: createReconcileMounts(parts, staging),
    replay: createReplayMounts(parts, binding),
    repair: createRepairMounts(parts, staging),
    unmountIdle: createUnmountIdle(parts, binding),
    renewUses: uses.renew,
    updateUses: uses.update,
  };
}
