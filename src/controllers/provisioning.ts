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
import { type Again, again, type Done, done } from './machinery/outcome.ts';
import {
  claimReference,
  classNameOf,
  provisionedBy,
  selectedNode,
  storeIdentity,
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
export function createProvisioning(parts: ControllerContext): Controller {
  const { client, clock, caches, events } = parts;
  const abandonedClaims = createAbandonedClaims(parts, (key) => controller.add(key));
  /** By claim: PersistentVolumes that are written but not in the cache yet. Kubernetes changes the claim at that very moment. */
  const written = new Map<string, { readonly uid: string; readonly at: number }>();

  async function reconcile(key: string, scope: Scope): Promise<Done | Again> {
    if (abandonedClaims.isKey(key)) return await abandonedClaims.reconcile(key, scope);
    const claim = caches.claims.get(key);
    try {
      return await provision(key, claim, scope);
    } catch (error) {
      if (claim !== undefined && !scope.signal.aborted) reportFailed(claim, error);
      throw error;
    }
  }

  /** Does not report on a new claim that has the same name. */
  function reportFailed(claim: PersistentVolumeClaim, error: unknown): void {
    if (caches.claims.get(keyOf(claim))?.metadata.uid !== claim.metadata.uid) return;
    const about = { reason: 'ProvisioningFailed', action: 'Provision' };
    reportFailure(events, claimReference(claim), about, error);
  }

  async function provision(key: string, claim: PersistentVolumeClaim | undefined, scope: Scope): Promise<Done | Again> {
    const ours = classAndProvisioner(claim, parts);
    if (claim === undefined || ours === undefined) {
      written.delete(key);
      return done;
    }
    const [kind, provisioner] = ours;
    const { uid = '' } = claim.metadata;
    const isThere = caches.volumes.get(volumeNameFor(uid)) !== undefined;
    if (isThere) written.delete(key);
    if (isThere || !mayProvision(claim, kind)) return done;
    const wroteMs = written.get(key)?.uid === uid ? clock.elapsed() - (written.get(key)?.at ?? 0) : watchLagMs;
    if (wroteMs < watchLagMs) return again(watchLagMs - wroteMs);
    if (needsPopulator(claim)) {
      reportPopulator(claim);
      return done;
    }
    const want = requestFor(claim, kind);
    if (mayBindExisting(claim)) return done;
    using making = abandonedClaims.begin(claim, provisioner);
    if (making === undefined) return again(cleanupRetryMs);
    const made = await create(claim, want, provisioner, scope);
    if ('kind' in made) return made;
    await createPersistentVolume(client, volumeFor(claim, kind, made, provisioner.driver, want.bytes), scope);
    making.written();
    written.set(key, { uid, at: clock.elapsed() });
    const note = `Created volume '${made.volume.store}/${made.volume.name}'`;
    const regarding = claimReference(claim);
    events.report({ regarding, type: 'Normal', reason: 'ProvisioningSucceeded', action: 'Provision', note });
    return done;
  }

  async function create(
    claim: PersistentVolumeClaim,
    want: VolumeRequest,
    by: Provisioner,
    scope: Scope,
  ): Promise<ProvisionedVolume | Again> {
    try {
      return await by.create(want, scope);
    } catch (error) {
      if (want.node !== undefined && by.canTryAnotherNode?.(error) === true) await unselectNode(client, claim, scope);
      throw error;
    }
  }

  /** Whether an unbound PersistentVolume of that class exists. Kubernetes binds it if it fits, or annotates the claim if it does not. */
  const mayBindExisting = (claim: PersistentVolumeClaim): boolean =>
    caches.volumes.by('free', classNameOf(claim)).length > 0 &&
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
    perGroup: 48,
    groupOf: (key) =>
      abandonedClaims.isKey(key)
        ? '#'
        : (classAndProvisioner(caches.claims.get(key), parts)?.[0].parameters?.['store'] ?? ''),
  });
  followWaitingClaims(controller, parts, {
    isWritten: (key) => written.has(key),
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
  const waitingFor = (name: string): string[] => caches.claims.by('waiting', name).map(keyOf);
  controller.follow(caches.claims, (claim) => {
    const key = keyOf(claim);
    const back = cleanupKeysOf(claim);
    // Reconcile the key, which resets its backoff: the next claim of that name must not inherit this one's failures.
    return back.length > 0 ? [key, ...back] : keyIfPending(key);
  });
  for (const [driver, { follow }] of provisioners)
    follow?.(() => {
      for (const { metadata, provisioner } of caches.classes.all())
        if (provisioner === driver) for (const key of waitingFor(metadata.name ?? '')) controller.add(key);
    });
  controller.follow(caches.classes, ({ metadata }) => waitingFor(metadata.name ?? ''));
  controller.follow(caches.stores, ({ metadata: { name } }) =>
    [...caches.classes.all()]
      .filter(({ parameters }) => parameters?.['store'] === undefined || parameters['store'] === name)
      .flatMap(({ metadata, provisioner }) => (provisioners.has(provisioner) ? waitingFor(metadata.name ?? '') : [])),
  );
  controller.follow(caches.volumes, ({ spec: { storageClassName = '', claimRef } }) =>
    claimRef?.uid === undefined
      ? waitingFor(storageClassName)
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
  const body = { metadata: { uid, resourceVersion, annotations: { [selectedNode]: null } } };
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

/** With WaitForFirstConsumer, not before the scheduler has chosen the node of the first pod. */
const mayProvision = ({ metadata }: PersistentVolumeClaim, { volumeBindingMode }: StorageClass): boolean =>
  volumeBindingMode !== 'WaitForFirstConsumer' || metadata.annotations?.[selectedNode] !== undefined;

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
function requestFor(claim: PersistentVolumeClaim, kind: StorageClass): VolumeRequest {
  const { metadata, spec } = claim;
  const { namespace = '', name = '', uid = '' } = metadata;
  const { store, enforce = false, nameTemplate } = parametersOf(kind);
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
  // No kubelet could mount such a volume, and its pods would wait forever.
  const onMany =
    driverNamed(kind.provisioner)?.multiNode === false
      ? spec.accessModes?.find((mode) => mode.endsWith('Many'))
      : undefined;
  if (onMany !== undefined)
    throw unsupported(
      `requests ${onMany}, but volumes of its class can be used on one node only`,
      `Use ReadWriteOnce or ReadWriteOncePod; or a class of ${fileDriver.name}, whose stores all nodes can reach.`,
    );
  if (access === 'filesystem') refuseMountOptions(kind);
  return {
    claim: { namespace, name, uid },
    store,
    enforce,
    bytes,
    access,
    name: nameFor(claim, nameTemplate),
    labels: labelsOf(metadata.labels ?? {}),
    // With any other binding mode the annotation has no meaning; it may be left over from another class.
    node: kind.volumeBindingMode === 'WaitForFirstConsumer' ? metadata.annotations?.[selectedNode] : undefined,
    allowed: kind.allowedTopologies ?? [],
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
  kind: StorageClass,
  { volume, nodeSelector, identity }: ProvisionedVolume,
  driver: string,
  bytes: bigint,
): PersistentVolume {
  const { uid = '' } = claim.metadata;
  const { reclaimPolicy = 'Delete', mountOptions } = kind;
  const { accessModes = ['ReadWriteOnce'], volumeMode = 'Filesystem' } = claim.spec;
  const affinity = nodeSelector ?? affinityOf(kind);
  return {
    metadata: {
      name: volumeNameFor(uid),
      annotations: { [provisionedBy]: driver, ...(identity === undefined ? {} : { [storeIdentity]: identity }) },
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
