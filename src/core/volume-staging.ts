import type { Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import type { LiveMount, Mount, Source, VolumeId } from './model.ts';
import type { Client, Mounter, MountPoint, Records, StageOptions, StagingTarget, UnstageOptions } from './ports.ts';

export interface VolumeStagingParts {
  readonly records: Records;
  readonly mounter: Mounter;
  readonly clients: Clients;
  /** Volumes are staged at `<folder>/<volume id>`. */
  readonly mountsFolder: string;
}

/** Manages staged mounts: one per volume and node, from which all its targets are bind-mounted. */
export interface VolumeStaging {
  path(id: VolumeId): string;
  /** Throws for a source that not even a privileged process could stage. */
  validate(source: Source): void;
  stage(source: Source, id: VolumeId, scope: Scope, options?: StageOptions): Promise<void>;
  unstage(source: Source, id: VolumeId, scope: Scope, options?: UnstageOptions): Promise<void>;
  /** Unstages if no other target is on record. Call it with the stage's lock held. */
  unstageIfIdle(mount: Mount, scope: Scope, options?: UnstageOptions): Promise<void>;
  /** Writes acknowledged data to the store, or throws. Call it before the last target is unmounted. */
  flush(source: Source, id: VolumeId, scope: Scope): Promise<void>;
  /** Grows the file system after the store enlarged the volume. */
  grow(source: Source, id: VolumeId, scope: Scope): Promise<void>;
  /** True if a mount of the volume in another mount namespace is still served. False if the client can't tell. */
  isServedElsewhere(source: Source, id: VolumeId, scope: Scope): Promise<boolean>;
  /** The volumes whose staged mount is dead: in the mount table, but no process serves it. Throws if the client cannot tell. */
  findDead(mounts: readonly Mount[], scope: Scope): Promise<readonly VolumeId[]>;
  /** Mounts whose target still shows an earlier staged mount, or nothing although the volume is being repaired. */
  staleTargets(mounts: readonly Mount[], scope: Scope): Promise<readonly Mount[]>;
  isStaged(id: VolumeId, scope: Scope): Promise<boolean>;
  /** Every path on this node where the source, or a part of it, is mounted. Undefined: unknown source kind. Empty if this process cannot mount. */
  mountsOf(source: Source, id: VolumeId, scope: Scope): Promise<readonly string[] | undefined>;
  /** The recorded mounts, with their state in the kernel's mount table. */
  withKernelState(mounts: readonly Mount[], scope: Scope): Promise<readonly LiveMount[]>;
}

const underRepairKey = 'mounts.repairing';

/** Volumes whose repair has begun. After a crash in the middle, their targets must not look as if somebody unmounted them. */
export function volumesUnderRepair({ settings }: Pick<Records, 'settings'>): readonly VolumeId[] {
  return JSON.parse(settings.get(underRepairKey) ?? '[]');
}

export function setUnderRepair(records: Pick<Records, 'settings'>, id: VolumeId, isUnderRepair: boolean): void {
  const idsUnderRepair = volumesUnderRepair(records);
  if (idsUnderRepair.includes(id) === isUnderRepair) return;
  const others = idsUnderRepair.filter((one) => one !== id);
  records.settings.set(underRepairKey, JSON.stringify(isUnderRepair ? [...others, id] : others));
}

const mountPointAt = (table: readonly MountPoint[], path: string): MountPoint | undefined =>
  table.findLast((point) => point.at === path);

/** The source field of our file systems in the mount table. `suffix` distinguishes successive mounts. */
export const ownSource = (id: VolumeId, suffix = ''): string => `stowage:${id}.${suffix}`;

/**
 * True if the target shows the volume's current staged mount or an earlier one. Anything else at the target was mounted by
 * somebody else.
 */
export function isOurMount(table: readonly MountPoint[], stage: string, { target, volumeId }: Mount): boolean {
  const staged = mountPointAt(table, stage);
  const atTarget = mountPointAt(table, target);
  if (atTarget?.source.startsWith(ownSource(volumeId)) === true) return true;
  return staged !== undefined && atTarget?.device === staged.device && atTarget.root === staged.root;
}

export function createVolumeStaging(parts: VolumeStagingParts): VolumeStaging {
  const { records, mounter, clients } = parts;
  const path = (id: VolumeId): string => `${parts.mountsFolder}/${id}`;

  const targetOf = (id: VolumeId): StagingTarget => ({ volumeId: id, path: path(id) });

  async function unstage(source: Source, id: VolumeId, scope: Scope, options?: UnstageOptions): Promise<void> {
    await clients.find(source)?.unstage(source, targetOf(id), scope, options);
  }

  /** The volumes with dead staged mounts. All mounts must belong to this client. */
  async function findDeadOf(client: Client, mounts: readonly Mount[], scope: Scope): Promise<readonly VolumeId[]> {
    const staged = new Map(mounts.map(({ volumeId: id, source }) => [path(id), { id, source }]));
    const stagedMounts = Array.from(staged.values(), ({ id, source }) => ({ source, target: targetOf(id) }));
    const dead = (await client.findDeadMounts?.(stagedMounts, scope)) ?? [];
    return dead.flatMap((at) => staged.get(at)?.id ?? []);
  }

  return {
    path,
    validate: (source) => clients.find(source)?.validate?.(source),
    stage: async (source, id, scope, options) => {
      await clients.find(source)?.stage(source, targetOf(id), scope, options);
    },
    unstage,
    unstageIfIdle: async ({ source, volumeId: id, target }, scope, options) => {
      if (records.mounts.byVolume(id).every((mount) => mount.target === target))
        await unstage(source, id, scope, options);
    },
    flush: async (source, id, scope) => {
      await clients.find(source)?.flush?.(source, targetOf(id), scope);
    },
    grow: async (source, id, scope) => {
      await clients.find(source)?.grow?.(source, targetOf(id), scope);
    },
    isServedElsewhere: async (source, id, scope) =>
      (await clients.find(source)?.isServedElsewhere?.(source, targetOf(id), scope)) === true,
    staleTargets: async (mounts, scope) => {
      const served = mounts.filter(({ source }) => clients.find(source)?.findDeadMounts !== undefined);
      if (served.length === 0) return [];
      const [table, underRepair] = [await mounter.list(scope), volumesUnderRepair(records)];
      return served.filter(({ volumeId: id, target }) => {
        const [staged, atTarget] = [mountPointAt(table, path(id)), mountPointAt(table, target)];
        if (staged === undefined || atTarget?.device === staged.device) return false;
        return atTarget === undefined ? underRepair.includes(id) : atTarget.source.startsWith(ownSource(id));
      });
    },
    findDead: async (mounts, scope) => {
      const deadVolumes: VolumeId[] = [];
      for (const [client, own] of clients.byClient(mounts)) deadVolumes.push(...(await findDeadOf(client, own, scope)));
      return deadVolumes;
    },
    mountsOf: async (source, id, scope) => {
      if (mounter.unable !== undefined) return [];
      return await clients.find(source)?.mountsOf(source, targetOf(id), scope);
    },
    isStaged: (id, scope) => mounter.isMounted(path(id), scope),
    withKernelState: async (mounts, scope) => {
      if (mounts.length === 0) return [];
      const table = await mounter.list(scope);
      return mounts.map((mount) => ({ ...mount, mounted: isOurMount(table, path(mount.volumeId), mount) }));
    },
  };
}
