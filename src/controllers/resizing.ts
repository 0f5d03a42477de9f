import type { Scope } from '#base/log.ts';
import { bytesOf, quantityOf } from '#base/quantity.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { Condition, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import type { ControllerContext } from './controller-context.ts';
import { keyOf } from './machinery/cache.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter } from './machinery/outcome.ts';
import { claimReference } from './names.ts';
import { reportFailure } from './report-failure.ts';

/** The conditions that Kubernetes defines for a claim that is being resized. */
const resizeConditions = new Set(['Resizing', 'FileSystemResizePending', 'ControllerResizeError', 'NodeResizeError']);
const storage = 'storage';

const storageBytesOf = (sizes: Readonly<Record<string, string>> | undefined): bigint => bytesOf(sizes?.[storage]) ?? 0n;

/** Expands the volumes of claims that request more than they have. */
export function createResizing(context: ControllerContext): Controller {
  const { client, clock, caches, events, provisioners } = context;

  async function reconcile(key: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    const claim = caches.claims.get(key);
    const volume = caches.volumes.get(claim?.spec.volumeName ?? '');
    if (claim === undefined || volume === undefined || !isBound(claim, volume) || !isTooSmall(claim)) return done;
    const provisioner = provisioners.get(volume.spec.csi?.driver ?? '');
    if (provisioner === undefined) return done;
    const wantedBytes = storageBytesOf(claim.spec.resources?.requests);
    const currentBytes = storageBytesOf(volume.spec.capacity);
    if (currentBytes >= wantedBytes && isWaitingForNodes(claim)) return done;
    const expanded = await provisioner.expand(volume, wantedBytes, scope);
    if (currentBytes < expanded.bytes) await patchCapacity(volume, expanded.bytes, scope);
    await patchClaimStatus(claim, expanded.bytes, expanded.nodeExpansionRequired, scope);
    const note = `Expanded the volume to ${quantityOf(expanded.bytes)}`;
    const event = { type: 'Normal', reason: 'VolumeResizeSuccessful', action: 'Resize', note } as const;
    events.report({ ...event, regarding: claimReference(claim) });
    return done;
  }

  async function patchCapacity({ metadata }: PersistentVolume, bytes: bigint, { signal }: Scope): Promise<void> {
    const { name = '', uid = '' } = metadata;
    const body = { metadata: { uid }, spec: { capacity: { [storage]: quantityOf(bytes) } } };
    await client.patch(persistentVolumes, { name }, { kind: 'merge', body }, signal);
  }

  /** If kubelets have to finish the expansion, the claim gets a condition, and the kubelets update the claim when they are done. */
  async function patchClaimStatus(
    claim: PersistentVolumeClaim,
    bytes: bigint,
    nodeExpansionRequired: boolean,
    scope: Scope,
  ): Promise<void> {
    const { namespace = '', name = '', resourceVersion = '' } = claim.metadata;
    const otherConditions = (claim.status?.conditions ?? []).filter(({ type }) => !resizeConditions.has(type));
    const pending: Condition = {
      type: 'FileSystemResizePending',
      status: 'True',
      message: 'Waiting for the nodes that have the volume mounted.',
      lastTransitionTime: new Date(clock.now()).toISOString().replace(/\.\d+Z$/, 'Z'),
    };
    const size = { [storage]: quantityOf(bytes) };
    const status = nodeExpansionRequired
      ? {
          conditions: [...otherConditions, pending],
          allocatedResources: size,
          allocatedResourceStatuses: { [storage]: 'NodeResizePending' },
        }
      : { conditions: otherConditions, capacity: size, allocatedResources: size, allocatedResourceStatuses: null };
    const body = { metadata: { resourceVersion }, status };
    await client.patch(claims, { namespace, name, subresource: 'status' }, { kind: 'merge', body }, scope.signal);
  }

  const controller = createController({
    name: 'resizing',
    clock,
    reconcile,
    workers: 16,
    groupOf: (key) => {
      const volume = caches.volumes.get(caches.claims.get(key)?.spec.volumeName ?? '');
      return volume?.spec.csi?.volumeAttributes?.['store'] ?? '';
    },
    onFailure: (key, error) => {
      const claim = caches.claims.get(key);
      const failureEvent = { reason: 'VolumeResizeFailed', action: 'Resize' };
      if (claim !== undefined) reportFailure(events, claimReference(claim), failureEvent, error);
    },
  });
  controller.follow(caches.claims, (claim) => (isTooSmall(claim) ? [keyOf(claim)] : []));
  // Most changes of PersistentVolumes are our own; only wait for the cache here.
  controller.follow(caches.volumes, () => []);
  caches.volumes.on({
    added: ({ spec: { claimRef } }) => {
      const key = `${claimRef?.namespace ?? ''}/${claimRef?.name ?? ''}`;
      if (isTooSmall(caches.claims.get(key))) controller.add(key);
    },
  });
  return controller;
}

/** Most claims have the size that they request. A claim that was just bound has no `status.capacity` yet. */
const isTooSmall = (claim: PersistentVolumeClaim | undefined): claim is PersistentVolumeClaim =>
  claim?.status?.capacity !== undefined &&
  storageBytesOf(claim.status.capacity) < storageBytesOf(claim.spec.resources?.requests);

const isBound = ({ metadata }: PersistentVolumeClaim, { spec }: PersistentVolume): boolean =>
  metadata.deletionTimestamp === undefined && spec.claimRef?.uid === metadata.uid;

/** The controller has done its part; a kubelet finishes when the volume is mounted. */
const isWaitingForNodes = ({ status }: PersistentVolumeClaim): boolean =>
  status?.allocatedResourceStatuses?.[storage]?.startsWith('NodeResize') === true;
