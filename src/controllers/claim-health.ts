import type { Scope } from '#base/log.ts';
import { claims } from '#wire/kube/resources.ts';
import type { Condition, PersistentVolumeClaim } from '#wire/kube/types.ts';
import type { AffectedPod } from './affected-pods.ts';
import type { ControllerContext } from './controller-context.ts';
import { claimNote, conditionReasons, healthAction, healthEventReasons, messageOf } from './health-messages.ts';
import type { MountProblems } from './mount-problems.ts';
import { claimReference, unhealthyNodesAnnotation } from './names.ts';
import { annotationOf, nodesIn, nodesNotReported, nodesToKeep, type UnhealthyNodes } from './unhealthy-nodes.ts';

/** The type of the condition on claims whose volume was unhealthy at some time. Other claims do not have it. */
const healthyCondition = 'stowage.dev/Healthy';

/** Writes the health of a volume to the condition and the annotation of its claim, with an Event for each change. */
export interface ClaimHealth {
  /** Returns false if the condition has to be checked again, since a node that had a problem has not reported yet. */
  update(claim: PersistentVolumeClaim, affectedPods: readonly AffectedPod[], scope: Scope): Promise<boolean>;
}

export interface ClaimHealthOptions extends Pick<ControllerContext, 'client' | 'clock' | 'caches' | 'events'> {
  readonly mountProblems: MountProblems;
}

export const isMarkedUnhealthy = ({ status }: PersistentVolumeClaim): boolean =>
  status?.conditions?.some(({ type, status: is }) => type === healthyCondition && is === 'False') === true;

export function createClaimHealth({ client, clock, caches, events, mountProblems }: ClaimHealthOptions): ClaimHealth {
  async function update(
    claim: PersistentVolumeClaim,
    affectedPods: readonly AffectedPod[],
    scope: Scope,
  ): Promise<boolean> {
    const previous = claim.status?.conditions?.find(({ type }) => type === healthyCondition);
    const previousNodes =
      previous?.status === 'False' ? nodesIn(claim.metadata.annotations?.[unhealthyNodesAnnotation]) : [];
    const [first] = affectedPods;
    if (first === undefined) {
      if (previous?.status !== 'False') return true;
      if (nodesNotReported(previousNodes, { mountProblems, caches }).length > 0) return false;
      await patchCondition(claim, { status: 'True', reason: 'Well', message: '' }, [], scope);
      const event = {
        type: 'Normal',
        reason: healthEventReasons.healthy,
        action: healthAction,
        note: claimNote(undefined),
      } as const;
      events.report({ ...event, regarding: claimReference(claim) });
      return true;
    }
    const problems = affectedPods.map(({ problem }) => problem);
    const nodes = nodesToKeep(
      problems.map(({ node }) => node),
      previousNodes,
      { mountProblems, caches },
    );
    const condition = {
      status: 'False',
      reason: conditionReasons[first.problem.kind],
      message: messageOf(problems),
    } as const;
    const isReported = previous?.status === 'False' && previous.reason === condition.reason;
    if (isReported && previous.message === condition.message && annotationOf(previousNodes) === annotationOf(nodes))
      return true;
    await patchCondition(claim, condition, nodes, scope);
    const event = {
      type: 'Warning',
      reason: healthEventReasons.unhealthy,
      action: healthAction,
      note: claimNote(condition.message),
    } as const;
    if (!isReported) events.report({ ...event, regarding: claimReference(claim) });
    return true;
  }

  async function patchCondition(
    { metadata, status }: PersistentVolumeClaim,
    condition: Omit<Condition, 'type'>,
    nodes: UnhealthyNodes,
    { signal }: Scope,
  ): Promise<void> {
    const { namespace = '', name = '', resourceVersion = '' } = metadata;
    const otherConditions = (status?.conditions ?? []).filter(({ type }) => type !== healthyCondition);
    const previous = status?.conditions?.find(({ type }) => type === healthyCondition);
    const now = new Date(clock.now()).toISOString().replace(/\.\d+Z$/, 'Z');
    const lastTransitionTime = previous?.status === condition.status ? (previous.lastTransitionTime ?? now) : now;
    const conditions = [...otherConditions, { type: healthyCondition, ...condition, lastTransitionTime }];
    const annotations = { [unhealthyNodesAnnotation]: nodes.length === 0 ? null : annotationOf(nodes) };
    // A merge patch replaces the whole list, so require the resourceVersion that was read. The status subresource accepts annotations too.
    const body = { metadata: { resourceVersion, annotations }, status: { conditions } };
    await client.patch(claims, { namespace, name, subresource: 'status' }, { kind: 'merge', body }, signal);
  }

  return { update };
}
