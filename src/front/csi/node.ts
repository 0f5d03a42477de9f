import { StowageError } from '#core/errors.ts';
import type { LiveMount, Volume, VolumeId } from '#core/model.ts';
import { isVolumeId, quoted } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { unknownVolume } from '#core/volume-errors.ts';
import { isHandle } from '#core/volume-handles.ts';
import {
  type Node,
  type NodeExpandVolumeRequest,
  NodeServiceCapability_RPC_Type as Rpc,
  StorageHealthErrorType as Storage,
} from '#wire/csi/generated/csi.ts';
import type { Handlers } from '#wire/csi/grpc.ts';
import { mountGroupOf, parseCapability, type RequestedCapability } from './capabilities.ts';
import { callFrom, type DriverContext, storesOf, topologyOf } from './driver-context.ts';
import { publishVolume } from './publish-volume.ts';
import {
  outOfRange,
  parseCapacityRange,
  requiredAbsolutePath,
  requiredPath,
  requiredText,
  toCheckedMap,
} from './request-fields.ts';
import { resolveMountableVolume, resolveVolume } from './resolve-volume.ts';
import { conditionMessage, conditionOnNode, healthMessage, storeConditionOf } from './volume-condition.ts';
import { usageOf } from './volume-usage.ts';

const capabilities = [
  Rpc.STAGE_UNSTAGE_VOLUME,
  Rpc.GET_VOLUME_STATS,
  Rpc.EXPAND_VOLUME,
  Rpc.VOLUME_CONDITION,
  Rpc.GET_VOLUME_HEALTH,
  Rpc.GET_STORAGE_HEALTH,
  Rpc.SINGLE_NODE_MULTI_WRITER,
];

/**
 * VOLUME_MOUNT_GROUP is a property of the whole driver: the kubelet passes the group to a driver that has it, and does not change the group
 * of files itself. A local file system can only show the group that its files have, so the driver for local stores leaves the change to the
 * kubelet, which follows the pod's fsGroupChangePolicy.
 */
const capabilitiesOf = ({ driver }: DriverContext): readonly Rpc[] =>
  driver.volumeMountGroup ? [...capabilities, Rpc.VOLUME_MOUNT_GROUP] : capabilities;

/** Each volume costs one or two mounts, and with NFS some memory of the data path. */
const defaultMaxVolumes = 1_000;

/**
 * A subdirectory of the staging path, not the path itself. Stowage also mounts the file system outside the kubelet's folders. If it were
 * mounted at the staging path itself, the kubelet would find the other mount, treat the volume as still in use, and never unstage it.
 */
const stagingTarget = (folder: string, { access }: Pick<RequestedCapability, 'access'>): string =>
  access === 'block' ? `${folder}/device` : `${folder}/volume`;

const isStagingTarget = (target: string, folder: string): boolean =>
  (['block', 'filesystem'] as const).some((access) => target === stagingTarget(folder, { access }));

/** Also removes the mount point, as CSI requires of the driver. */
const withTarget = { force: false, claimTarget: true } as const;

export const nodeOf = (ctx: DriverContext): Handlers<typeof Node> => ({
  nodeGetCapabilities: async () => ({
    capabilities: capabilitiesOf(ctx).map((type) => ({ type: { case: 'rpc', value: { type } } })),
  }),
  nodeGetInfo: async () => ({
    nodeId: ctx.core.node,
    maxVolumesPerNode: BigInt(ctx.maxVolumes ?? defaultMaxVolumes),
    ...(ctx.driver.topology === 'node' ? { accessibleTopology: { segments: { ...topologyOf(ctx) } } } : {}),
  }),
  nodeStageVolume: async (request, given) => {
    const id = requiredText(request.volumeId, 'volume_id');
    const folder = requiredAbsolutePath(request.stagingTargetPath, 'staging_target_path');
    const requested = parseCapability(request.volumeCapability);
    for (const field of ['publishContext', 'secrets', 'volumeContext'] as const) toCheckedMap(request[field], field);
    const call = callFrom(ctx, given);
    await ctx.runExclusive(`${id} ${folder}`, async () => {
      const volume = await resolveMountableVolume(ctx, id, requested, call);
      const user = { kind: 'kubelet' as const, name: ctx.driver.name, node: ctx.core.node };
      const how = {
        readOnly: requested.readOnly,
        user,
        claimTarget: true,
        singleNodeWriter: requested.singleNodeWriter === 'staged',
        group: mountGroupOf(ctx, requested),
      };
      await ctx.core.mounts.publish(volume.id, stagingTarget(folder, requested), how, call);
    });
    return {};
  },
  nodeUnstageVolume: async ({ volumeId, stagingTargetPath }, given) => {
    const id = requiredText(volumeId, 'volume_id');
    const folder = requiredAbsolutePath(stagingTargetPath, 'staging_target_path');
    await ctx.runExclusive(`${id} ${folder}`, () => unstage(ctx, id, folder, callFrom(ctx, given)));
    return {};
  },
  nodePublishVolume: (request, given) => publishVolume(ctx, request, callFrom(ctx, given)),
  nodeUnpublishVolume: async ({ volumeId, targetPath }, given) => {
    const id = requiredText(volumeId, 'volume_id');
    const target = requiredAbsolutePath(targetPath, 'target_path');
    const call = callFrom(ctx, given);
    await ctx.runExclusive(`${id} ${target}`, async () => {
      if (await ctx.core.ephemerals.unpublish(id, target, call)) return;
      await ctx.core.mounts.unpublish(target, volumeIdIn(id), call, withTarget);
    });
    return {};
  },
  nodeGetVolumeStats: async ({ volumeId, volumePath, stagingTargetPath }, given) => {
    const id = requiredText(volumeId, 'volume_id');
    const path = requiredPath(volumePath, 'volume_path');
    if (stagingTargetPath !== '') requiredPath(stagingTargetPath, 'staging_target_path');
    const call = callFrom(ctx, given);
    const { volume, mount } = await requireMountAt(ctx, id, path, call);
    const [usage, condition] = await Promise.all([
      usageOf(ctx, volume, mount),
      conditionOnNode(ctx, volume, mount.target, call),
    ]);
    return { usage: [...usage], volumeCondition: conditionMessage(condition) };
  },
  nodeGetVolumeHealth: async ({ volumeId }, given) => {
    const call = callFrom(ctx, given);
    const volume = await resolveAnyVolume(ctx, requiredText(volumeId, 'volume_id'), call);
    return { volumeHealth: healthMessage(volumeId, await conditionOnNode(ctx, volume, undefined, call)) };
  },
  nodeGetStorageHealth: async ({ secrets }, given) => {
    toCheckedMap(secrets, 'secrets');
    const call = callFrom(ctx, given);
    const stores = storesOf(ctx).map(({ config }) => ({ store: config.name }));
    const conditions = await Promise.all(stores.map((one) => storeConditionOf(ctx, one, call)));
    const unhealthy = Map.groupBy(
      conditions.filter(({ health }) => health !== 'ok'),
      ({ reason }) => reason,
    );
    const status = Storage.STORAGE_UNREACHABLE;
    // One for each reason, whatever number of stores has it: the specification wants no second.
    const backendHealth = [...unhealthy].map(([reason, all]) => ({
      status,
      reason,
      message: all.map(({ message }) => message).join('; '),
    }));
    return { backendHealth };
  },
  nodeExpandVolume: (request, given) => expand(ctx, request, callFrom(ctx, given)),
});

/**
 * Undefined for a handle that is not an id, such as `store..name`. Unmounting then uses only the target: by now the name may belong to
 * another volume, or to none.
 */
const volumeIdIn = (ref: string): VolumeId | undefined => (isVolumeId(ref) ? ref : undefined);

/** Uses only local records, so that unstaging works while the store is down. */
async function unstage(ctx: DriverContext, ref: string, folder: string, call: Call): Promise<void> {
  const id = volumeIdIn(ref);
  const targets = (['block', 'filesystem'] as const).map((access) => stagingTarget(folder, { access }));
  const mounts = id === undefined ? [] : await ctx.core.mounts.ofVolume(id, call);
  const staged = await findMountAt(ctx, mounts, folder, isStagingTarget, call);
  // Without a recorded mount, unpublish both possible targets: a mount in flight must not appear after this has returned. The kubelet
  // removes the folder next, which fails unless the folder is empty.
  for (const target of staged === undefined ? targets : [staged.target])
    await ctx.core.mounts.unpublish(target, id, call, withTarget);
}

/** A volume by its handle, or an inline volume. */
async function resolveAnyVolume(ctx: DriverContext, ref: string, call: Call): Promise<Volume> {
  const ephemeral = ctx.core.ephemerals.volume(ref);
  return ephemeral ?? (await resolveVolume(ctx, ref, call));
}

/** Looks for the path as given, then for the path it resolves to: the kubelet's folder may be a symbolic link or lie behind one. */
async function findMountAt(
  { core }: DriverContext,
  mounts: readonly LiveMount[],
  path: string,
  isMountAt: (target: string, path: string) => boolean,
  call: Call,
): Promise<LiveMount | undefined> {
  const findByTarget = (place: string): LiveMount | undefined => mounts.find(({ target }) => isMountAt(target, place));
  if (mounts.length === 0) return undefined;
  return findByTarget(path) ?? findByTarget(await core.mounts.resolvePath(path, call));
}

async function requireMountAt(
  ctx: DriverContext,
  ref: string,
  target: string,
  call: Call,
): Promise<{ readonly volume: Volume; readonly mount: LiveMount }> {
  const volume = await resolveAnyVolume(ctx, ref, call);
  // A mount that a user unmounted is still on record. Its target now shows another file system.
  const mounts = (await ctx.core.mounts.ofVolume(volume.id, call)).filter(({ mounted }) => mounted);
  const isThere = (at: string, path: string): boolean => at === path || isStagingTarget(at, path);
  const mount = await findMountAt(ctx, mounts, target, isThere, call);
  if (mount !== undefined) return { volume, mount };
  throw new StowageError(`volume '${volume.store}/${volume.name}' is not mounted at ${quoted(target)}`, {
    code: 'not-found',
    reason: 'mount-not-found',
    action: 'List the mounts: stowage mounts',
  });
}

async function expand(ctx: DriverContext, request: NodeExpandVolumeRequest, call: Call) {
  const id = requiredText(request.volumeId, 'volume_id');
  const path = requiredPath(request.volumePath, 'volume_path');
  const range = parseCapacityRange(request.capacityRange);
  toCheckedMap(request.secrets, 'secrets');
  if (request.stagingTargetPath !== '') requiredPath(request.stagingTargetPath, 'staging_target_path');
  if (request.volumeCapability !== undefined) parseCapability(request.volumeCapability);
  if (!isHandle(id)) throw unknownVolume(id);
  return await ctx.runExclusive(`volume ${id}`, async () => {
    const { volume } = await requireMountAt(ctx, id, path, call);
    if (range.from !== undefined && (volume.bytes ?? 0n) < range.from)
      throw outOfRange(`volume '${volume.store}/${volume.name}' has not been expanded to that size on its store`);
    await ctx.core.volumes.growStaged(volume, call);
    return { capacityBytes: volume.bytes ?? 0n };
  });
}
