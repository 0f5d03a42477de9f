import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeId } from '#core/model.ts';
import type { LiveMount } from '#core/mounts.ts';
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
import { groupOf, type Wish, wishFrom } from './capabilities.ts';
import { type About, callFrom, storesOf, topologyOf } from './driver-context.ts';
import { publishVolume } from './publish-volume.ts';
import { mapIn, outOfRange, pathIn, rangeIn, somePathIn, textIn } from './request-fields.ts';
import { fittingVolume, volumeOf } from './resolve-volume.ts';
import { conditionHere, conditionMessage, healthMessage, storeConditionOf } from './volume-condition.ts';
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
 * Groups are a property of a driver: who says so is given them, and nothing is done about them by the kubelet. A local file system
 * can show no other group than files have, so there the kubelet gives them to it, as pods say how (fsGroupChangePolicy).
 */
const capabilitiesOf = ({ driver }: About): readonly Rpc[] =>
  driver.volumeMountGroup ? [...capabilities, Rpc.VOLUME_MOUNT_GROUP] : capabilities;

/** Each is a mount or two, and with NFS a share of a data path's memory. */
const mostVolumes = 1_000;

/**
 * In the folder that is given for it, not on it. While the file system that is mounted on that folder is also mounted outside
 * the kubelet's own folders, as it is where Stowage keeps it, a kubelet takes it for somebody else's and never unstages it.
 */
const stagedAt = (folder: string, { access }: Pick<Wish, 'access'>): string =>
  access === 'block' ? `${folder}/device` : `${folder}/volume`;

/** Of whichever kind it is. */
const isStagedAt = (target: string, folder: string): boolean =>
  (['block', 'filesystem'] as const).some((access) => target === stagedAt(folder, { access }));

/** With the folder or file that it was mounted on, of which CSI says that the driver removes it. */
const wholly = { force: false, claimTarget: true } as const;

export const nodeOf = (about: About): Handlers<typeof Node> => ({
  nodeGetCapabilities: async () => ({
    capabilities: capabilitiesOf(about).map((type) => ({ type: { case: 'rpc', value: { type } } })),
  }),
  nodeGetInfo: async () => ({
    nodeId: about.core.node,
    maxVolumesPerNode: BigInt(about.maxVolumes ?? mostVolumes),
    ...(about.driver.topology === 'node' ? { accessibleTopology: { segments: { ...topologyOf(about) } } } : {}),
  }),
  nodeStageVolume: async (request, given) => {
    const id = textIn(request.volumeId, 'volume_id');
    const folder = pathIn(request.stagingTargetPath, 'staging_target_path');
    const wish = wishFrom(request.volumeCapability);
    for (const field of ['publishContext', 'secrets', 'volumeContext'] as const) mapIn(request[field], field);
    const call = callFrom(about, given);
    await about.underway(`${id} ${folder}`, async () => {
      const volume = await fittingVolume(about, id, wish, call);
      const user = { kind: 'kubelet' as const, name: about.driver.name, node: about.core.node };
      const how = {
        readOnly: wish.readOnly,
        user,
        claimTarget: true,
        singleNodeWriter: wish.singleNodeWriter === 'staged',
        group: groupOf(about, wish),
      };
      await about.core.mounts.publish(volume.id, stagedAt(folder, wish), how, call);
    });
    return {};
  },
  nodeUnstageVolume: async ({ volumeId, stagingTargetPath }, given) => {
    const id = textIn(volumeId, 'volume_id');
    const folder = pathIn(stagingTargetPath, 'staging_target_path');
    await about.underway(`${id} ${folder}`, () => unstage(about, id, folder, callFrom(about, given)));
    return {};
  },
  nodePublishVolume: (request, given) => publishVolume(about, request, callFrom(about, given)),
  nodeUnpublishVolume: async ({ volumeId, targetPath }, given) => {
    const id = textIn(volumeId, 'volume_id');
    const target = pathIn(targetPath, 'target_path');
    const call = callFrom(about, given);
    await about.underway(`${id} ${target}`, async () => {
      if (await about.core.ephemerals.unpublish(id, target, call)) return;
      await about.core.mounts.unpublish(target, idIn(id), call, wholly);
    });
    return {};
  },
  nodeGetVolumeStats: async ({ volumeId, volumePath, stagingTargetPath }, given) => {
    const id = textIn(volumeId, 'volume_id');
    const path = somePathIn(volumePath, 'volume_path');
    if (stagingTargetPath !== '') somePathIn(stagingTargetPath, 'staging_target_path');
    const call = callFrom(about, given);
    const { volume, mount } = await mountedAt(about, id, path, call);
    const [usage, condition] = await Promise.all([
      usageOf(about, volume, mount),
      conditionHere(about, volume, mount.target, call),
    ]);
    return { usage: [...usage], volumeCondition: conditionMessage(condition) };
  },
  nodeGetVolumeHealth: async ({ volumeId }, given) => {
    const call = callFrom(about, given);
    const volume = await volumeAny(about, textIn(volumeId, 'volume_id'), call);
    return { volumeHealth: healthMessage(volumeId, await conditionHere(about, volume, undefined, call)) };
  },
  nodeGetStorageHealth: async ({ secrets }, given) => {
    mapIn(secrets, 'secrets');
    const call = callFrom(about, given);
    const stores = storesOf(about).map(({ config }) => ({ store: config.name }));
    const conditions = await Promise.all(stores.map((one) => storeConditionOf(about, one, call)));
    const ill = Map.groupBy(
      conditions.filter(({ health }) => health !== 'ok'),
      ({ reason }) => reason,
    );
    const status = Storage.STORAGE_UNREACHABLE;
    // One for each reason, whatever number of stores has it: the specification wants no second.
    const backendHealth = [...ill].map(([reason, all]) => ({
      status,
      reason,
      message: all.map(({ message }) => message).join('; '),
    }));
    return { backendHealth };
  },
  nodeExpandVolume: (request, given) => expand(about, request, callFrom(about, given)),
});

/**
 * Undefined: it is a name, or nothing at all. What was mounted somewhere is known by that place: by now the name may be that of
 * another volume, or of none.
 */
const idIn = (ref: string): VolumeId | undefined => (isVolumeId(ref) ? ref : undefined);

/** By our records alone: nothing is unmounted later because a store is down. */
async function unstage(about: About, ref: string, folder: string, call: Call): Promise<void> {
  const id = idIn(ref);
  const targets = (['block', 'filesystem'] as const).map((access) => stagedAt(folder, { access }));
  const mounts = id === undefined ? [] : await about.core.mounts.of(id, call);
  const staged = await foundAt(about, mounts, folder, isStagedAt, call);
  // One that is on its way there, too: it must not come after this has said that there is none. And a kubelet removes the folder
  // next, which fails while anything is in it.
  for (const target of staged === undefined ? targets : [staged.target])
    await about.core.mounts.unpublish(target, id, call, wholly);
}

/** A volume by its id, or one that lives with its pod. */
async function volumeAny(about: About, ref: string, call: Call): Promise<Volume> {
  const ephemeral = about.core.ephemerals.volume(ref);
  return ephemeral ?? (await volumeOf(about, ref, call));
}

/** As the path is given, or where it leads: a kubelet's folder may be a symbolic link, or lie behind one. */
async function foundAt(
  { core }: About,
  mounts: readonly LiveMount[],
  path: string,
  isThere: (target: string, path: string) => boolean,
  call: Call,
): Promise<LiveMount | undefined> {
  const at = (place: string): LiveMount | undefined => mounts.find(({ target }) => isThere(target, place));
  if (mounts.length === 0) return undefined;
  return at(path) ?? at(await core.mounts.locate(path, call));
}

async function mountedAt(
  about: About,
  ref: string,
  target: string,
  call: Call,
): Promise<{ readonly volume: Volume; readonly mount: LiveMount }> {
  const volume = await volumeAny(about, ref, call);
  // One that somebody unmounted is still on record: below it lies whatever else is there.
  const mounts = (await about.core.mounts.of(volume.id, call)).filter(({ mounted }) => mounted);
  const isThere = (at: string, path: string): boolean => at === path || isStagedAt(at, path);
  const mount = await foundAt(about, mounts, target, isThere, call);
  if (mount !== undefined) return { volume, mount };
  throw new StowageError(`volume '${volume.store}/${volume.name}' is not mounted at ${quoted(target)}`, {
    code: 'not-found',
    reason: 'mount-not-found',
    action: 'See what is mounted where: stowage mounts',
  });
}

async function expand(about: About, request: NodeExpandVolumeRequest, call: Call) {
  const id = textIn(request.volumeId, 'volume_id');
  const path = somePathIn(request.volumePath, 'volume_path');
  const range = rangeIn(request.capacityRange);
  mapIn(request.secrets, 'secrets');
  if (request.stagingTargetPath !== '') somePathIn(request.stagingTargetPath, 'staging_target_path');
  if (request.volumeCapability !== undefined) wishFrom(request.volumeCapability);
  if (!isHandle(id)) throw unknownVolume(id);
  return await about.underway(`volume ${id}`, async () => {
    const { volume } = await mountedAt(about, id, path, call);
    if (range.from !== undefined && (volume.bytes ?? 0n) < range.from)
      throw outOfRange(`volume '${volume.store}/${volume.name}' has not been enlarged so far by its store`);
    await about.core.volumes.growStaged(volume, call);
    return { capacityBytes: volume.bytes ?? 0n };
  });
}
