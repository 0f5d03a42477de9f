import type { PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type AffectedPod, podReference } from './affected-pods.ts';
import type { ControllerContext } from './controller-context.ts';
import { healthAction, healthEventReasons, podNote } from './health-messages.ts';
import type { MountProblem } from './mount-problems.ts';
import { claimReference } from './names.ts';

/** The API server keeps an Event on a pod for an hour. */
const repeatIntervalMs = 1_800_000;

interface ReportedProblem {
  readonly problem: MountProblem;
  readonly reportedAt: number;
}

/** Reports problems, and their end, as Events on pods. Remembers what it reported; a new leader reports problems again. */
export interface PodHealthEvents {
  /** `key` identifies the volume and its PersistentVolume. `affectedPods`: the pods that have a problem now, the worst first. */
  report(key: string, affectedPods: readonly AffectedPod[], claim: PersistentVolumeClaim | undefined): void;
}

export function createPodHealthEvents({ clock, events }: Pick<ControllerContext, 'clock' | 'events'>): PodHealthEvents {
  /** By `key`, then by pod uid. */
  const reported = new Map<string, ReadonlyMap<string, ReportedProblem>>();

  function report(key: string, affectedPods: readonly AffectedPod[], claim: PersistentVolumeClaim | undefined): void {
    const previous = reported.get(key) ?? new Map<string, ReportedProblem>();
    const now = clock.elapsed();
    const current = new Map<string, ReportedProblem>();
    const commonFields = { action: healthAction, ...(claim === undefined ? {} : { related: claimReference(claim) }) };
    for (const { problem, pod } of affectedPods) {
      if (current.has(problem.pod.uid)) continue;
      const known = previous.get(problem.pod.uid);
      if (known?.problem.kind === problem.kind && now - known.reportedAt < repeatIntervalMs) {
        current.set(problem.pod.uid, known);
        continue;
      }
      current.set(problem.pod.uid, { problem, reportedAt: now });
      const note = podNote(problem, pod, claim?.metadata.name);
      events.report({
        ...commonFields,
        regarding: podReference(problem.pod),
        type: 'Warning',
        reason: healthEventReasons.unhealthy,
        note,
      });
    }
    for (const [uid, { problem }] of previous) {
      if (current.has(uid)) continue;
      const note = podNote(undefined, undefined, claim?.metadata.name);
      events.report({
        ...commonFields,
        regarding: podReference(problem.pod),
        type: 'Normal',
        reason: healthEventReasons.healthy,
        note,
      });
    }
    if (current.size === 0) reported.delete(key);
    else reported.set(key, current);
  }

  return { report };
}
