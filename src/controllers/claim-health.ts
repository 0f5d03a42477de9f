import type { Scope } from '#base/log.ts';
import { claims } from '#wire/kube/resources.ts';
import type { Condition, PersistentVolumeClaim } from '#wire/kube/types.ts';
import type { AffectedPod } from './affected-pods.ts';
import type { ControllerContext } from './controller-context.ts';
import { claimNote, healthAction, healthEventReasons, messageOf, reasons } from './health-messages.ts';
import type { MountProblems } from './mount-problems.ts';
import { claimReference, unhealthyNodes } from './names.ts';
import { nodesIn, nodesNotReported, nodesToKeep, textOf, type UnhealthyNodes } from './unhealthy-nodes.ts';

/** The type of the condition on claims whose volume was unhealthy at some time. Other claims do not have it. */
const healthy = 'stowage.dev/Healthy';

/** Writes the health of a volume to the condition and the annotation of its claim, with an Event for each change. */
export interface ClaimHealth {
  /** Returns whether the claim's condition is final for now. */
  update(claim: PersistentVolumeClaim, worst: readonly AffectedPod[], scope: Scope): Promise<boolean>;
}

export interface ClaimHealthOptions extends Pick<ControllerContext, 'client' | 'clock' | 'caches' | 'events'> {
  readonly mountProblems: MountProblems;
}

export const isMarkedUnhealthy = ({ status }: PersistentVolumeClaim): boolean =>
  status?.conditions?.some(({ type, status: is }) => type === healthy && is === 'False') === true;

export function createClaimHealth({ client, clock, caches, events, mountProblems }: ClaimHealthOptions): ClaimHealth {
  async function update(claim: PersistentVolumeClaim, worst: readonly AffectedPod[], scope: Scope): Promise<boolean> {
    const known = claim.status?.conditions?.find(({ type }) => type === healthy);
    const before = known?.status === 'False' ? nodesIn(claim.metadata.annotations?.[unhealthyNodes]) : [];
    const [first] = worst;
    if (first === undefined) {
      if (known?.status !== 'False') return true;
      if (nodesNotReported(before, { mountProblems, caches }).length > 0) return false;
      await patchCondition(claim, { status: 'True', reason: 'Well', message: '' }, [], scope);
      const about = {
        type: 'Normal',
        reason: healthEventReasons.healthy,
        action: healthAction,
        note: claimNote(undefined),
      } as const;
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
      reason: healthEventReasons.unhealthy,
      action: healthAction,
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

  return { update };
}
