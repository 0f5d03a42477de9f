import type { Scope } from '#base/log.ts';
import { bytesOf, quantityOf } from '#base/quantity.ts';
import { driverNamed, fileDriver } from '#core/csi-drivers.ts';
import { StowageError } from '#core/errors.ts';
import { isLabelKey, isReservedLabel } from '#core/labels.ts';
import type { Access, Labels } from '#core/model.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { NodeSelector, PersistentVolume, PersistentVolumeClaim, StorageClass } from '#wire/kube/types.ts';
import { type AbandonedClaims, createAbandonedClaims } from './abandoned-claims.ts';
import { type ControllerContext, ignoreNotFound } from './controller-context.ts';
import { keyOf } from './machinery/cache.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import {
  claimReference,
  classNameOf,
  provisionedByAnnotation,
  selectedNodeAnnotation,
  storeIdentityAnnotation,
  volumeFinalizer,
  volumeNameFor,
} from './names.ts';
import { nameFor, parametersOf, refuseMountOptions } from './parameters.ts';
import type { ProvisionedVolume, Provisioner, VolumeRequest } from './provisioner.ts';
import { reportFailure } from './report-failure.ts';

/** How long to wait for the watch to deliver a PersistentVolume that this process wrote. After that, create it again. */
const watchLagMs = 10_000;
/** Retry delay while the volume of the same claim is being deleted: the cache and the API server disagree about the claim. */
const cleanupRetryMs = 1_000;

/** Kubernetes sets one of these on a claim after it found no existing PersistentVolume for it. */
const provisionerAnnotations = [
  'volume.kubernetes.io/storage-provisioner',
  'volume.beta.kubernetes.io/storage-provisioner',
];

/**
 * Creates a volume and a PersistentVolume for each claim, with two requests: the PersistentVolume and an Event. It does not get the claim
 * first: if the claim changes meanwhile, Kubernetes releases the PersistentVolume, which is then deleted like any other.
 */
export function createProvisioning(context: ControllerContext): Controller {
  const { client, clock, caches, events } = context;
  const abandonedClaims = createAbandonedClaims(context, (key) => controller.add(key));
  /** By claim: PersistentVolumes that are written but not in the cache yet. Kubernetes changes the claim at the same time. */
  const recentWrites = new Map<string, { readonly uid: string; readonly writtenAt: number }>();

  async function reconcile(key: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    if (abandonedClaims.isKey(key)) return await abandonedClaims.reconcile(key, scope);
    const claim = caches.claims.get(key);
    try {
      return await provision(key, claim, scope);
    } catch (error) {
      if (claim !== undefined && !scope.signal.aborted) reportProvisioningFailed(claim, error);
      throw error;
    }
  }

  /** Does not report on a new claim that has the same name. */
  function reportProvisioningFailed(claim: PersistentVolumeClaim, error: unknown): void {
    if (caches.claims.get(keyOf(claim))?.metadata.uid !== claim.metadata.uid) return;
    const failureEvent = { reason: 'ProvisioningFailed', action: 'Provision' };
    reportFailure(events, claimReference(claim), failureEvent, error);
  }

  async function provision(
    key: string,
    claim: PersistentVolumeClaim | undefined,
    scope: Scope,
  ): Promise<ReconcileDone | RequeueAfter> {
    const matched = classAndProvisioner(claim, context);
    if (claim === undefined || matched === undefined) {
      recentWrites.delete(key);
      return done;
    }
    const [storageClass, provisioner] = matched;
    const { uid = '' } = claim.metadata;
    const isProvisioned = caches.volumes.get(volumeNameFor(uid)) !== undefined;
    if (isProvisioned) recentWrites.delete(key);
    if (isProvisioned || !mayProvision(claim, storageClass)) return done;
    const sinceWrittenMs =
      recentWrites.get(key)?.uid === uid ? clock.elapsed() - (recentWrites.get(key)?.writtenAt ?? 0) : watchLagMs;
    if (sinceWrittenMs < watchLagMs) return requeueAfter(watchLagMs - sinceWrittenMs);
    if (needsPopulator(claim)) {
      reportPopulator(claim);
      return done;
    }
    const request = requestFor(claim, storageClass);
    if (mayBindExisting(claim)) return done;
    using creation = abandonedClaims.beginCreation(claim, provisioner);
    if (creation === undefined) return requeueAfter(cleanupRetryMs);
    const created = await createVolume(claim, request, provisioner, scope);
    if ('kind' in created) return created;
    await createPersistentVolume(
      client,
      volumeFor(claim, storageClass, created, provisioner.driver, request.bytes),
      scope,
    );
    creation.markWritten();
    recentWrites.set(key, { uid, writtenAt: clock.elapsed() });
    const note = `Created volume '${created.volume.store}/${created.volume.name}'`;
    const regarding = claimReference(claim);
    events.report({ regarding, type: 'Normal', reason: 'ProvisioningSucceeded', action: 'Provision', note });
    return done;
  }

  async function createVolume(
    claim: PersistentVolumeClaim,
    request: VolumeRequest,
    provisioner: Provisioner,
    scope: Scope,
  ): Promise<ProvisionedVolume | RequeueAfter> {
    try {
      return await provisioner.create(request, scope);
    } catch (error) {
      if (request.node !== undefined && provisioner.canTryAnotherNode?.(error) === true)
        await unselectNode(client, claim, scope);
      throw error;
    }
  }

  /** Whether an unbound PersistentVolume of that class exists. Kubernetes binds it if it fits, or annotates the claim if it does not. */
  const mayBindExisting = (claim: PersistentVolumeClaim): boolean =>
    caches.volumes.byIndex('free', classNameOf(claim)).length > 0 &&
    !provisionerAnnotations.some((key) => claim.metadata.annotations?.[key] !== undefined);

  function reportPopulator(claim: PersistentVolumeClaim): void {
    const { kind = '', name = '' } = claim.spec.dataSourceRef ?? {};
    const note = `The claim waits for the volume populator of ${kind} '${name}': Stowage does not create its volume`;
    const regarding = claimReference(claim);
    events.report({ regarding, type: 'Normal', reason: 'WaitForPopulator', action: 'Provision', note });
  }

  const controller: Controller = createController({
    name: 'provisioning',
    clock,
    reconcile,
    workers: 96,
    workersPerGroup: 48,
    groupOf: (key) =>
      abandonedClaims.isKey(key)
        ? '#'
        : (classAndProvisioner(caches.claims.get(key), context)?.[0].parameters?.['store'] ?? ''),
  });
  followWaitingClaims(controller, context, {
    isWritten: (key) => recentWrites.has(key),
    cleanupKeysOf: abandonedClaims.keysOf,
  });
  return controller;
}

interface ClaimsInProgress {
  /** Whether the claim's PersistentVolume is written, but not in the cache yet. */
  readonly isWritten: (key: string) => boolean;
  readonly cleanupKeysOf: AbandonedClaims['keysOf'];
}

/** Enqueues the claims that a change concerns. */
function followWaitingClaims(
  controller: Controller,
  parts: Pick<ControllerContext, 'caches' | 'provisioners'>,
  { isWritten, cleanupKeysOf }: ClaimsInProgress,
): void {
  const { caches, provisioners } = parts;
  /** A claim and its PersistentVolume each change about four times while they are bound. Most of these changes need no reconcile. */
  const keyIfPending = (key: string): readonly string[] =>
    isWritten(key) || classAndProvisioner(caches.claims.get(key), parts) !== undefined ? [key] : [];
  const claimsWaitingFor = (name: string): string[] => caches.claims.byIndex('waiting', name).map(keyOf);
  controller.follow(caches.claims, (claim) => {
    const key = keyOf(claim);
    const cleanupKeys = cleanupKeysOf(claim);
    // Reconcile the key, which resets its backoff: the next claim of that name must not inherit this one's failures.
    return cleanupKeys.length > 0 ? [key, ...cleanupKeys] : keyIfPending(key);
  });
  for (const [driver, { follow }] of provisioners)
    follow?.(() => {
      for (const { metadata, provisioner } of caches.classes.all())
        if (provisioner === driver) for (const key of claimsWaitingFor(metadata.name ?? '')) controller.add(key);
    });
  controller.follow(caches.classes, ({ metadata }) => claimsWaitingFor(metadata.name ?? ''));
  controller.follow(caches.stores, ({ metadata: { name } }) =>
    [...caches.classes.all()]
      .filter(({ parameters }) => parameters?.['store'] === undefined || parameters['store'] === name)
      .flatMap(({ metadata, provisioner }) =>
        provisioners.has(provisioner) ? claimsWaitingFor(metadata.name ?? '') : [],
      ),
  );
  controller.follow(caches.volumes, ({ spec: { storageClassName = '', claimRef } }) =>
    claimRef?.uid === undefined
      ? claimsWaitingFor(storageClassName)
      : keyIfPending(`${claimRef.namespace ?? ''}/${claimRef.name ?? ''}`),
  );
}

/** Undefined if the claim does not wait for a volume, or its class is not for one of our drivers. */
function classAndProvisioner(
  claim: PersistentVolumeClaim | undefined,
  { caches, provisioners }: Pick<ControllerContext, 'caches' | 'provisioners'>,
): [StorageClass, Provisioner] | undefined {
  if (claim === undefined || claim.metadata.deletionTimestamp !== undefined) return undefined;
  if (claim.spec.volumeName !== undefined) return undefined;
  const found = caches.classes.get(classNameOf(claim));
  const provisioner = provisioners.get(found?.provisioner ?? '');
  return found === undefined || provisioner === undefined ? undefined : [found, provisioner];
}

/** Removes the selected node, so that the scheduler chooses again. */
async function unselectNode(
  client: ControllerContext['client'],
  { metadata }: PersistentVolumeClaim,
  { signal }: Scope,
): Promise<void> {
  const { namespace = '', name = '', uid = '', resourceVersion = '' } = metadata;
  const body = { metadata: { uid, resourceVersion, annotations: { [selectedNodeAnnotation]: null } } };
  await ignoreNotFound(client.patch(claims, { namespace, name }, { kind: 'merge', body }, signal));
}

async function createPersistentVolume(
  client: ControllerContext['client'],
  volume: PersistentVolume,
  { signal }: Scope,
): Promise<void> {
  try {
    await client.create(persistentVolumes, volume, signal);
  } catch (thrown) {
    // This controller created it, in a call whose answer was lost: no other client uses this name.
    if (reasonOf(thrown) !== 'AlreadyExists') throw thrown;
  }
}

/** Whether to create the volume now: with WaitForFirstConsumer, not before the scheduler has chosen the node of the first pod. */
const mayProvision = ({ metadata }: PersistentVolumeClaim, { volumeBindingMode }: StorageClass): boolean =>
  volumeBindingMode !== 'WaitForFirstConsumer' || metadata.annotations?.[selectedNodeAnnotation] !== undefined;

const builtInSources: ReadonlySet<string> = new Set([
  '/PersistentVolumeClaim',
  'snapshot.storage.k8s.io/VolumeSnapshot',
]);

/** A volume populator fills a volume through a claim of its own, and then binds it to this claim. */
function needsPopulator({ spec: { dataSourceRef } }: PersistentVolumeClaim): boolean {
  return (
    dataSourceRef !== undefined && !builtInSources.has(`${dataSourceRef.apiGroup ?? ''}/${dataSourceRef.kind ?? ''}`)
  );
}

/** Throws for a request that Stowage does not support. */
function requestFor(claim: PersistentVolumeClaim, storageClass: StorageClass): VolumeRequest {
  const { metadata, spec } = claim;
  const { namespace = '', name = '', uid = '' } = metadata;
  const { store, enforce = false, nameTemplate } = parametersOf(storageClass);
  if (spec.dataSource !== undefined || spec.dataSourceRef !== undefined)
    throw unsupported('has a dataSource: Stowage cannot clone volumes or restore snapshots yet', 'Remove dataSource.');
  if (spec.selector !== undefined)
    throw unsupported(
      'has a selector, which only matches existing PersistentVolumes',
      'Remove the selector, or create a matching PersistentVolume.',
    );
  const bytes = bytesOf(spec.resources?.requests?.['storage']);
  if (bytes === undefined || bytes === 0n)
    throw unsupported('requests no storage', 'Set spec.resources.requests.storage.');
  const access: Access = spec.volumeMode === 'Block' ? 'block' : 'filesystem';
  // No kubelet could mount a volume with this access mode, and its pods would wait forever.
  const accessMode =
    driverNamed(storageClass.provisioner)?.multiNode === false
      ? spec.accessModes?.find((mode) => mode.endsWith('Many'))
      : undefined;
  if (accessMode !== undefined)
    throw unsupported(
      `requests ${accessMode}, but volumes of its class can be used on one node only`,
      `Use ReadWriteOnce or ReadWriteOncePod; or a class of ${fileDriver.name}, whose stores all nodes can reach.`,
    );
  if (access === 'filesystem') refuseMountOptions(storageClass);
  return {
    claim: { namespace, name, uid },
    store,
    enforce,
    bytes,
    access,
    name: nameFor(claim, nameTemplate),
    labels: labelsOf(metadata.labels ?? {}),
    // With any other binding mode the annotation has no meaning; it may be left over from another class.
    node:
      storageClass.volumeBindingMode === 'WaitForFirstConsumer'
        ? metadata.annotations?.[selectedNodeAnnotation]
        : undefined,
    allowedTopologies: storageClass.allowedTopologies ?? [],
  };
}

const unsupported = (what: string, action: string): StowageError =>
  new StowageError(`the claim ${what}`, { code: 'unsupported', reason: 'claim-unsupported', action });

/** The claim's labels that are valid as volume labels. Path templates of stores use them. */
const labelsOf = (labels: Labels): Labels =>
  Object.fromEntries(
    Object.entries(labels)
      .filter(([key]) => isLabelKey(key) && !isReservedLabel(key))
      .slice(0, 32),
  );

function volumeFor(
  claim: PersistentVolumeClaim,
  storageClass: StorageClass,
  { volume, nodeSelector, identity }: ProvisionedVolume,
  driver: string,
  bytes: bigint,
): PersistentVolume {
  const { uid = '' } = claim.metadata;
  const { reclaimPolicy = 'Delete', mountOptions } = storageClass;
  const { accessModes = ['ReadWriteOnce'], volumeMode = 'Filesystem' } = claim.spec;
  const affinity = nodeSelector ?? affinityOf(storageClass);
  return {
    metadata: {
      name: volumeNameFor(uid),
      annotations: {
        [provisionedByAnnotation]: driver,
        ...(identity === undefined ? {} : { [storeIdentityAnnotation]: identity }),
      },
      finalizers: [volumeFinalizer],
    },
    spec: {
      capacity: { storage: quantityOf(volume.bytes ?? bytes) },
      accessModes,
      volumeMode,
      persistentVolumeReclaimPolicy: reclaimPolicy,
      storageClassName: classNameOf(claim),
      ...(mountOptions === undefined ? {} : { mountOptions }),
      claimRef: claimReference(claim),
      csi: { driver, volumeHandle: volume.id, volumeAttributes: { store: volume.store, name: volume.name } },
      ...(affinity === undefined ? {} : { nodeAffinity: { required: affinity } }),
    },
  };
}

/** The node affinity for a store that all nodes reach: the allowed topologies of the class. */
function affinityOf({ allowedTopologies = [] }: StorageClass): NodeSelector | undefined {
  const terms = allowedTopologies.flatMap(({ matchLabelExpressions = [] }) =>
    matchLabelExpressions.length === 0
      ? []
      : { matchExpressions: matchLabelExpressions.map(({ key, values }) => ({ key, operator: 'In', values })) },
  );
  return terms.length === 0 ? undefined : { nodeSelectorTerms: terms };
}
