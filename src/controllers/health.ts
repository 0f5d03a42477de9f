import type { Scope } from '#base/log.ts';
import { isVolumeId } from '#core/names.ts';
import { claims } from '#wire/kube/resources.ts';
import type { Condition, ObjectReference, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type AffectedPod, createPodReader, podReference } from './affected-pods.ts';
import type { ControllerParts } from './controller-parts.ts';
import { claimNote, messageOf, podNote, reasons } from './health-messages.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { type Again, again, type Done, done } from './machinery/outcome.ts';
import { type MountProblem, type MountProblems, mountProblemKinds } from './mount-problems.ts';
import { claimReference, unhealthyNodes } from './names.ts';
import type { Restarts } from './restarts.ts';
import { nodesIn, nodesNotReported, nodesToKeep, textOf, type UnhealthyNodes } from './unhealthy-nodes.ts';

export interface HealthOptions extends Omit<ControllerParts, 'provisioners'> {
  readonly mountProblems: MountProblems;
  readonly restarts: Pick<Restarts, 'consider'>;
}

/** The type of the condition on claims whose volume was unhealthy at some time. Other claims do not have it. */
const healthy = 'stowage.dev/Healthy';
/** The reasons that the CSI external-health-monitor uses. */
const eventReasons = { unhealthy: 'VolumeConditionAbnormal', healthy: 'VolumeConditionNormal' } as const;
const action = 'Monitor';

/** The API server keeps an Event on a pod for an hour. */
const repeatMs = 1_800_000;
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
  const { client, clock, caches, events, mountProblems, restarts } = options;
  const reader = createPodReader(client);
  /** The last problem reported to each pod, and when. By volume and PersistentVolume, then by pod uid. */
  const reported = new Map<string, ReadonlyMap<string, { readonly problem: MountProblem; readonly at: number }>>();

  /** Whether a PersistentVolume refers to the volume by another handle, which then reports the problem. */
  const hasOtherHandle = (handle: string): boolean =>
    mountProblems
      .of(handle)
      .some(({ handles }) => handles.some((other) => caches.volumes.by('handle', other).length > 0));

  async function reconcile(volume: string, scope: Scope): Promise<Done | Again> {
    // One silent store can make thousands of claims unhealthy, and Events are written one at a time.
    if (events.waiting > maxWaitingEvents) return again(busyRetryMs * (1 + Math.random()));
    const those = caches.volumes.by('handle', volume);
    // An ephemeral volume of a pod has no PersistentVolume, and is known only by its id.
    if (those.length === 0 && (!isVolumeId(volume) || hasOtherHandle(volume))) return done;
    const afterMs: number[] = [];
    for (const one of those.length === 0 ? [undefined] : those) afterMs.push(await check(volume, one, scope));
    const soonest = Math.min(...afterMs);
    return soonest === Number.POSITIVE_INFINITY ? done : again(soonest);
  }

  /** `of` is undefined for an ephemeral volume of a pod. Returns after how long to check again. */
  async function check(volume: string, of: PersistentVolume | undefined, scope: Scope): Promise<number> {
    const ref = of?.spec.claimRef;
    const claimed = claimOf(ref);
    const all = mountProblems.of(volume).filter(({ pod }) => of === undefined || pod.namespace === ref?.namespace);
    const affected: AffectedPod[] = [];
    for (const problem of all) {
      const pod = await reader.affectedPod(problem, ref?.name, scope);
      if (pod !== undefined) affected.push(pod);
    }
    const worst = affected.toSorted((a, b) => rank(a) - rank(b));
    const isSettled = claimed === undefined || (await updateClaim(claimed, worst, scope));
    reportToPods(`${volume} ${of?.metadata.name ?? ''}`, worst, claimed);
    for (const { problem } of worst) if (problem.kind === 'repaired' && claimed) restarts.consider(problem, claimed);
    const isOver = worst.length === 0 && isSettled && all.every(({ kind }) => kind === 'repaired');
    return isOver ? Number.POSITIVE_INFINITY : recheckMs;
  }

  function claimOf(ref: ObjectReference | undefined): PersistentVolumeClaim | undefined {
    const claim = caches.claims.get(`${ref?.namespace ?? ''}/${ref?.name ?? ''}`);
    return claim !== undefined && claim.metadata.uid === ref?.uid ? claim : undefined;
  }

  /** Returns whether the claim's condition is final for now. */
  async function updateClaim(
    claim: PersistentVolumeClaim,
    worst: readonly AffectedPod[],
    scope: Scope,
  ): Promise<boolean> {
    const known = claim.status?.conditions?.find(({ type }) => type === healthy);
    const before = known?.status === 'False' ? nodesIn(claim.metadata.annotations?.[unhealthyNodes]) : [];
    const [first] = worst;
    if (first === undefined) {
      if (known?.status !== 'False') return true;
      if (nodesNotReported(before, { mountProblems, caches }).length > 0) return false;
      await patchCondition(claim, { status: 'True', reason: 'Well', message: '' }, [], scope);
      const about = { type: 'Normal', reason: eventReasons.healthy, action, note: claimNote(undefined) } as const;
      events.report({ ...about, regarding: claimReference(claim) });
      return true;
    }
    const all = worst.map(({ problem }) => problem);
    const nodes = nodesToKeep(
      all.map(({ node }) => node),
      before,
      { mountProblems, caches },
    );
    const condition = { status: 'False', reason: reasons[first.problem.kind], message: messageOf(all) } as const;
    const isSaid = known?.status === 'False' && known.reason === condition.reason;
    if (isSaid && known.message === condition.message && textOf(before) === textOf(nodes)) return true;
    await patchCondition(claim, condition, nodes, scope);
    const about = {
      type: 'Warning',
      reason: eventReasons.unhealthy,
      action,
      note: claimNote(condition.message),
    } as const;
    if (!isSaid) events.report({ ...about, regarding: claimReference(claim) });
    return true;
  }

  async function patchCondition(
    { metadata, status }: PersistentVolumeClaim,
    condition: Omit<Condition, 'type'>,
    nodes: UnhealthyNodes,
    { signal }: Scope,
  ): Promise<void> {
    const { namespace = '', name = '', resourceVersion = '' } = metadata;
    const others = (status?.conditions ?? []).filter(({ type }) => type !== healthy);
    const known = status?.conditions?.find(({ type }) => type === healthy);
    const now = new Date(clock.now()).toISOString().replace(/\.\d+Z$/, 'Z');
    const lastTransitionTime = known?.status === condition.status ? (known.lastTransitionTime ?? now) : now;
    const conditions = [...others, { type: healthy, ...condition, lastTransitionTime }];
    const annotations = { [unhealthyNodes]: nodes.length === 0 ? null : textOf(nodes) };
    // A merge patch replaces the whole list, so require the resourceVersion that was read. The status subresource accepts annotations too.
    const body = { metadata: { resourceVersion, annotations }, status: { conditions } };
    await client.patch(claims, { namespace, name, subresource: 'status' }, { kind: 'merge', body }, signal);
  }

  function reportToPods(key: string, worst: readonly AffectedPod[], claim: PersistentVolumeClaim | undefined): void {
    const before = reported.get(key) ?? new Map();
    const now = clock.elapsed();
    const after = new Map<string, { readonly problem: MountProblem; readonly at: number }>();
    const about = { action, ...(claim === undefined ? {} : { related: claimReference(claim) }) };
    for (const { problem, pod } of worst) {
      if (after.has(problem.pod.uid)) continue;
      const known = before.get(problem.pod.uid);
      const isNew = known?.problem.kind !== problem.kind || now - known.at >= repeatMs;
      after.set(problem.pod.uid, isNew ? { problem, at: now } : known);
      if (!isNew) continue;
      const note = podNote(problem, pod, claim?.metadata.name);
      events.report({
        ...about,
        regarding: podReference(problem.pod),
        type: 'Warning',
        reason: eventReasons.unhealthy,
        note,
      });
    }
    for (const [uid, { problem }] of before) {
      if (after.has(uid)) continue;
      const note = podNote(undefined, undefined, claim?.metadata.name);
      events.report({
        ...about,
        regarding: podReference(problem.pod),
        type: 'Normal',
        reason: eventReasons.healthy,
        note,
      });
    }
    if (after.size === 0) reported.delete(key);
    else reported.set(key, after);
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
  // The claims that an earlier leader marked as unhealthy.
  controller.follow(caches.claims, (claim) => {
    const isUnhealthy = claim.status?.conditions?.some(({ type, status }) => type === healthy && status === 'False');
    const handle = caches.volumes.get(claim.spec.volumeName ?? '')?.spec.csi?.volumeHandle;
    return isUnhealthy === true && handle !== undefined ? [handle] : [];
  });
  controller.follow(caches.volumes, ({ spec: { csi, claimRef } }) => {
    const conditions = claimOf(claimRef)?.status?.conditions ?? [];
    const isUnhealthy = conditions.some(({ type, status }) => type === healthy && status === 'False');
    return isUnhealthy && csi !== undefined ? [csi.volumeHandle] : [];
  });
  controller.follow(caches.nodes, () => []);
  return controller;
}

const rank = ({ problem }: AffectedPod): number => mountProblemKinds.indexOf(problem.kind);
