import type { Scope } from '#base/log.ts';
import { isVolumeId } from '#core/names.ts';
import type { ObjectReference, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type AffectedPod, createPodReader } from './affected-pods.ts';
import { createClaimHealth, isMarkedUnhealthy } from './claim-health.ts';
import type { ControllerContext } from './controller-context.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { type MountProblems, mountProblemKinds } from './mount-problems.ts';
import { createPodHealthEvents } from './pod-health-events.ts';
import type { Restarts } from './restarts.ts';

export interface HealthOptions extends Omit<ControllerContext, 'provisioners'> {
  readonly mountProblems: MountProblems;
  readonly restarts: Pick<Restarts, 'requestRestart'>;
}

/** Pods are not watched, so poll for whether one was restarted. */
const recheckMs = 60_000;
/** If more Events than this wait for the API server, retry later. */
const maxWaitingEvents = 100;
const busyRetryMs = 2_000;

/**
 * Reports unhealthy volumes, and their recovery, on claims and pods. A condition of the claim has the volume's health, and an annotation
 * the unhealthy nodes. The controller compares with both, so that it reports each change once, also across a change of leader. Each
 * change is an Event on the claim. Pods get only Events, which this process remembers; a new leader reports unhealthy volumes to their
 * pods again.
 *
 * Kubernetes' own health monitor only writes Events, which expire after an hour; the condition stays. Other controllers, such as the
 * resizer, keep conditions that are not theirs. Nothing is written to the PersistentVolume: users may not be allowed to read it.
 */
export function createHealth(options: HealthOptions): Controller {
  const { clock, caches, events, mountProblems, restarts } = options;
  const reader = createPodReader(options.client);
  const claimHealth = createClaimHealth(options);
  const podEvents = createPodHealthEvents(options);

  /** Whether a PersistentVolume refers to the volume by another handle, which then reports the problem. */
  const hasOtherHandle = (handle: string): boolean =>
    mountProblems
      .problemsOf(handle)
      .some(({ handles }) => handles.some((other) => caches.volumes.byIndex('handle', other).length > 0));

  async function reconcile(volume: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    // One silent store can make thousands of claims unhealthy, and Events are written one at a time.
    if (events.waiting > maxWaitingEvents) return requeueAfter(busyRetryMs * (1 + Math.random()));
    const persistentVolumes = caches.volumes.byIndex('handle', volume);
    // An ephemeral volume of a pod has no PersistentVolume, and is known only by its id.
    if (persistentVolumes.length === 0 && (!isVolumeId(volume) || hasOtherHandle(volume))) return done;
    const recheckDelaysMs: number[] = [];
    for (const persistentVolume of persistentVolumes.length === 0 ? [undefined] : persistentVolumes)
      recheckDelaysMs.push(await check(volume, persistentVolume, scope));
    const nextDelayMs = Math.min(...recheckDelaysMs);
    return nextDelayMs === Number.POSITIVE_INFINITY ? done : requeueAfter(nextDelayMs);
  }

  /** `persistentVolume` is undefined for an ephemeral volume of a pod. Returns the delay until the next check. */
  async function check(volume: string, persistentVolume: PersistentVolume | undefined, scope: Scope): Promise<number> {
    const ref = persistentVolume?.spec.claimRef;
    const claim = claimOf(ref);
    const problems = mountProblems
      .problemsOf(volume)
      .filter(({ pod }) => persistentVolume === undefined || pod.namespace === ref?.namespace);
    const affected: AffectedPod[] = [];
    for (const problem of problems) {
      const pod = await reader.affectedPod(problem, ref?.name, scope);
      if (pod !== undefined) affected.push(pod);
    }
    const worst = affected.toSorted((a, b) => rank(a) - rank(b));
    const isSettled = claim === undefined || (await claimHealth.update(claim, worst, scope));
    podEvents.report(`${volume} ${persistentVolume?.metadata.name ?? ''}`, worst, claim);
    for (const { problem } of worst) if (problem.kind === 'repaired' && claim) restarts.requestRestart(problem, claim);
    const needsNoRecheck = worst.length === 0 && isSettled && problems.every(({ kind }) => kind === 'repaired');
    return needsNoRecheck ? Number.POSITIVE_INFINITY : recheckMs;
  }

  function claimOf(ref: ObjectReference | undefined): PersistentVolumeClaim | undefined {
    const claim = caches.claims.get(`${ref?.namespace ?? ''}/${ref?.name ?? ''}`);
    return claim !== undefined && claim.metadata.uid === ref?.uid ? claim : undefined;
  }

  const controller = createController({
    name: 'health',
    clock,
    reconcile,
    workers: 8,
    maxRetryMs: recheckMs,
  });
  mountProblems.onChange((volumes) => {
    for (const volume of volumes) controller.add(volume);
  });
  // Reconcile the claims that an earlier leader marked as unhealthy.
  controller.follow(caches.claims, (claim) => {
    const handle = caches.volumes.get(claim.spec.volumeName ?? '')?.spec.csi?.volumeHandle;
    return isMarkedUnhealthy(claim) && handle !== undefined ? [handle] : [];
  });
  controller.follow(caches.volumes, ({ spec: { csi, claimRef } }) => {
    const claim = claimOf(claimRef);
    return claim !== undefined && isMarkedUnhealthy(claim) && csi !== undefined ? [csi.volumeHandle] : [];
  });
  controller.follow(caches.nodes, () => []);
  return controller;
}

const rank = ({ problem }: AffectedPod): number => mountProblemKinds.indexOf(problem.kind);
