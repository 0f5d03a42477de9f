import { podParameters } from '#core/class-parameters.ts';
import { StowageError } from '#core/errors.ts';
import type { User, Volume } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import type { NodePublishVolumeRequest } from '#wire/csi/generated/csi.ts';
import { cannotHave, groupOf, otherNewFilesystem, type Wish, wishFrom } from './capabilities.ts';
import { parametersFrom } from './create-volume.ts';
import { type About, storeFor, storeNeeded } from './driver-context.ts';
import { mapIn, pathIn, refuse, sizeIn, textIn } from './request-fields.ts';
import { fittingVolume, otherFilesystemOf } from './resolve-volume.ts';

const ofKubernetes = 'csi.storage.k8s.io/';

export async function publishVolume(about: About, request: NodePublishVolumeRequest, call: Call) {
  const id = textIn(request.volumeId, 'volume_id');
  const target = pathIn(request.targetPath, 'target_path');
  const wish = wishFrom(request.volumeCapability);
  const context = mapIn(request.volumeContext, 'volume_context');
  for (const field of ['publishContext', 'secrets'] as const) mapIn(request[field], field);
  const readOnly = request.readonly || wish.readOnly;
  const how = {
    readOnly,
    user: userFrom(about, context, target),
    singlePod: wish.singlePod,
    claimTarget: true,
    group: groupOf(about, wish),
    singleNodeWriter: wish.singleNodeWriter === 'staged' || (wish.singleNodeWriter === 'written' && !readOnly),
  };
  const isEphemeral = context.get(`${ofKubernetes}ephemeral`) === 'true';
  if (!isEphemeral) {
    if (request.stagingTargetPath === '') throw notStaged();
    pathIn(request.stagingTargetPath, 'staging_target_path');
  }
  await refuseOtherUsers(about, context, call);
  await about.underway(`${id} ${target}`, async () => {
    if (isEphemeral) return await publishEphemeral(about, id, target, wish, context, how, call);
    const volume = await fittingVolume(about, id, wish, call);
    if (readOnly && !wish.readOnly) refuseReadOnlyDevice(about, volume);
    await about.core.mounts.publish(volume.id, target, how, call);
  });
  return {};
}

/**
 * It is staged for writing, and the device is one for all who have it: a second one that only reads would have a cache of its own, and
 * show what others wrote long ago.
 */
function refuseReadOnlyDevice({ core }: About, { access, store, name }: Volume): void {
  if (access !== 'block') return;
  const view = core.stores.view(store);
  if (view.store !== undefined && view.config.policy.readOnly) return;
  throw new StowageError(`volume '${store}/${name}' is a raw device, which cannot be given to a pod read-only`, {
    code: 'unsupported',
    reason: 'block-read-only',
    action: 'Take readOnly: true out of the pod, or use a claim with volumeMode: Filesystem.',
  });
}

/** Files have the machine's users. A pod that has others would see, and make, files of users that nobody is. */
async function refuseOtherUsers({ podUsers }: About, context: ReadonlyMap<string, string>, call: Call): Promise<void> {
  const [namespace, name, uid] = ['namespace', 'name', 'uid'].map((part) => context.get(`${ofKubernetes}pod.${part}`));
  if (podUsers === undefined || namespace === undefined || name === undefined || uid === undefined) return;
  if ((await podUsers({ namespace, name, uid }, call.signal)) !== 'own') return;
  throw new StowageError(
    `pod '${namespace}/${name}' has a user namespace, and volumes cannot be mounted for those yet`,
    {
      code: 'unsupported',
      reason: 'pod-user-namespace',
      action: 'Take hostUsers: false out of the pod.',
    },
  );
}

/** Who the volume is for. The kubelet says so where the driver asks for it. */
function userFrom({ core }: About, context: ReadonlyMap<string, string>, target: string): User {
  const [namespace, name] = ['namespace', 'name'].map((part) => context.get(`${ofKubernetes}pod.${part}`));
  if (namespace !== undefined && name !== undefined)
    return { kind: 'pod', name: `${namespace}/${name}`, node: core.node };
  // Where a kubelet has them, the path says at least which it is.
  return { kind: 'pod', name: /\/pods\/([^/]+)\//.exec(target)?.[1] ?? 'unknown', node: core.node };
}

/**
 * It is made here, by what the pod says of it, and goes with the pod. Kubelets say it again of pods that run: what is there by then
 * stays where it is, and as it is.
 */
async function publishEphemeral(
  about: About,
  id: string,
  target: string,
  wish: Wish,
  context: ReadonlyMap<string, string>,
  how: Parameters<About['core']['mounts']['publish']>[2],
  call: Call,
): Promise<void> {
  if (wish.access === 'block') throw refuse('a volume that lives with its pod cannot be a block device');
  const { store, enforce, size } = parametersFrom(context, podParameters);
  const known = about.core.ephemerals.volume(id);
  const view = storeFor(about, store ?? known?.store);
  if (view === undefined) throw storeNeeded(about);
  // It is this pod's alone, whatever mode is said.
  const bytes = sizeIn(size);
  const wrong =
    cannotHave([{ ...wish, manyNodes: false }], about.driver, view) ??
    (known === undefined
      ? otherNewFilesystem([wish], view, bytes ?? view.config.policy.defaultSize)
      : await otherFilesystemOf(about, known, [wish], call));
  if (wrong !== undefined) throw refuse(wrong);
  const want = { store: view.config.name, bytes, enforce: enforce ?? false };
  await about.core.ephemerals.publish(id, want, target, { ...how, singleNodeWriter: false, singlePod: false }, call);
}

function notStaged(): StowageError {
  return new StowageError('staging_target_path is missing: the volume must be staged first', {
    code: 'conflict',
    reason: 'csi-not-staged',
    action: 'Call NodeStageVolume first.',
  });
}
