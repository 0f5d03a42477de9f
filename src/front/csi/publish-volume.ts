import { podParameters } from '#core/class-parameters.ts';
import { StowageError } from '#core/errors.ts';
import type { User, Volume } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import type { NodePublishVolumeRequest } from '#wire/csi/generated/csi.ts';
import {
  mountGroupOf,
  newVolumeFilesystemMismatch,
  parseCapability,
  type RequestedCapability,
  unsupportedBecause,
} from './capabilities.ts';
import { parseParameters } from './create-volume.ts';
import { chooseStore, type DriverContext, storeRequired } from './driver-context.ts';
import { invalidRequest, parseSizeField, requiredAbsolutePath, requiredText, toCheckedMap } from './request-fields.ts';
import { resolveMountableVolume, volumeFilesystemMismatch } from './resolve-volume.ts';

const kubernetesPrefix = 'csi.storage.k8s.io/';

export async function publishVolume(ctx: DriverContext, request: NodePublishVolumeRequest, call: Call) {
  const id = requiredText(request.volumeId, 'volume_id');
  const target = requiredAbsolutePath(request.targetPath, 'target_path');
  const requested = parseCapability(request.volumeCapability);
  const context = toCheckedMap(request.volumeContext, 'volume_context');
  for (const field of ['publishContext', 'secrets'] as const) toCheckedMap(request[field], field);
  const readOnly = request.readonly || requested.readOnly;
  const how = {
    readOnly,
    user: userFrom(ctx, context, target),
    singlePod: requested.singlePod,
    claimTarget: true,
    group: mountGroupOf(ctx, requested),
    singleNodeWriter:
      requested.singleNodeWriter === 'staged' || (requested.singleNodeWriter === 'written' && !readOnly),
  };
  const isEphemeral = context.get(`${kubernetesPrefix}ephemeral`) === 'true';
  if (!isEphemeral) {
    if (request.stagingTargetPath === '') throw notStaged();
    requiredAbsolutePath(request.stagingTargetPath, 'staging_target_path');
  }
  await requireHostUsers(ctx, context, call);
  await ctx.runExclusive(`${id} ${target}`, async () => {
    if (isEphemeral) return await publishEphemeral(ctx, id, target, requested, context, how, call);
    const volume = await resolveMountableVolume(ctx, id, requested, call);
    if (readOnly && !requested.readOnly) requireWritableDevice(ctx, volume);
    await ctx.core.mounts.publish(volume.id, target, how, call);
  });
  return {};
}

/**
 * The device is staged for writing and shared by all pods of the node. A second, read-only device would have its own page cache and show
 * stale data.
 */
function requireWritableDevice({ core }: DriverContext, { access, store, name }: Volume): void {
  if (access !== 'block') return;
  const view = core.stores.view(store);
  if (view.store !== undefined && view.config.policy.readOnly) return;
  throw new StowageError(`volume '${store}/${name}' is a raw block device, which cannot be published read-only`, {
    code: 'unsupported',
    reason: 'block-read-only',
    action: 'Remove readOnly: true from the pod, or use a claim with volumeMode: Filesystem.',
  });
}

/** Files are owned by the host's uids. A pod with a user namespace would see and create files with uids that match no user. */
async function requireHostUsers(
  { podUsers }: DriverContext,
  context: ReadonlyMap<string, string>,
  call: Call,
): Promise<void> {
  const [namespace, name, uid] = ['namespace', 'name', 'uid'].map((part) =>
    context.get(`${kubernetesPrefix}pod.${part}`),
  );
  if (podUsers === undefined || namespace === undefined || name === undefined || uid === undefined) return;
  if ((await podUsers({ namespace, name, uid }, call.signal)) !== 'own') return;
  throw new StowageError(`pod '${namespace}/${name}' has a user namespace, which volumes do not support yet`, {
    code: 'unsupported',
    reason: 'pod-user-namespace',
    action: 'Remove hostUsers: false from the pod.',
  });
}

/** The pod that the volume is for. The kubelet names it if the CSIDriver object has podInfoOnMount. */
function userFrom({ core }: DriverContext, context: ReadonlyMap<string, string>, target: string): User {
  const [namespace, name] = ['namespace', 'name'].map((part) => context.get(`${kubernetesPrefix}pod.${part}`));
  if (namespace !== undefined && name !== undefined)
    return { kind: 'pod', name: `${namespace}/${name}`, node: core.node };
  // The path of a pod's volume contains the pod's UID.
  return { kind: 'pod', name: /\/pods\/([^/]+)\//.exec(target)?.[1] ?? 'unknown', node: core.node };
}

/**
 * Creates the inline volume that the pod describes; it is deleted with the pod. A kubelet repeats the call for running pods, for
 * example after it restarted: an existing volume keeps its store and its settings.
 */
async function publishEphemeral(
  ctx: DriverContext,
  id: string,
  target: string,
  requested: RequestedCapability,
  context: ReadonlyMap<string, string>,
  how: Parameters<DriverContext['core']['mounts']['publish']>[2],
  call: Call,
): Promise<void> {
  if (requested.access === 'block') throw invalidRequest('an inline volume cannot be a block device');
  const { store, enforce, size } = parseParameters(context, podParameters);
  const known = ctx.core.ephemerals.volume(id);
  const view = chooseStore(ctx, store ?? known?.store);
  if (view === undefined) throw storeRequired(ctx);
  // Only this pod uses the volume, whatever the access mode.
  const bytes = parseSizeField(size);
  const wrong =
    unsupportedBecause([{ ...requested, multiNode: false }], ctx.driver, view) ??
    (known === undefined
      ? newVolumeFilesystemMismatch([requested], view, bytes ?? view.config.policy.defaultSize)
      : await volumeFilesystemMismatch(ctx, known, [requested], call));
  if (wrong !== undefined) throw invalidRequest(wrong);
  const want = { store: view.config.name, bytes, enforce: enforce ?? false };
  await ctx.core.ephemerals.publish(id, want, target, { ...how, singleNodeWriter: false, singlePod: false }, call);
}

function notStaged(): StowageError {
  return new StowageError('staging_target_path is missing: the volume must be staged first', {
    code: 'conflict',
    reason: 'csi-not-staged',
    action: 'Call NodeStageVolume first.',
  });
}
