import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { pods } from '#wire/kube/resources.ts';
import type { ObjectReference, Pod } from '#wire/kube/types.ts';
import { ignoreNotFound } from './controller-parts.ts';
import type { MountProblem } from './mount-problems.ts';

export const podReference = ({ namespace, name, uid }: MountProblem['pod']): ObjectReference => ({
  apiVersion: 'v1',
  kind: 'Pod',
  namespace,
  name,
  uid,
});

/** A mount that is ill for a pod which is there, and has it. */
export interface AffectedPod {
  readonly problem: MountProblem;
  readonly pod: Pod;
}

/** Pods are asked for one by one, when something is wrong with their mounts: nobody watches all of them for that. */
export interface PodReader {
  /**
   * Undefined: it is not there any more, has ended or is ending, is another one, is on another node than the one that spoke of it, or
   * has no such claim; or it has been started again since its mount was made anew. `claim`: its name; undefined for what lives with the pod.
   */
  affectedPod(problem: MountProblem, claim: string | undefined, scope: Scope): Promise<AffectedPod | undefined>;
}

export function createPodReader(client: KubeClient): PodReader {
  return {
    affectedPod: async (problem, claim, scope) => {
      const { namespace, name, uid } = problem.pod;
      const pod = await ignoreNotFound(client.get(pods, { namespace, name }, scope.signal));
      if (pod === undefined || pod.metadata.uid !== uid || pod.metadata.deletionTimestamp !== undefined)
        return undefined;
      if (pod.spec?.nodeName !== problem.node || pod.status?.phase === 'Succeeded' || pod.status?.phase === 'Failed')
        return undefined;
      const names = podVolumeNames(pod, claim);
      if (names.size === 0) return undefined;
      if (problem.kind === 'repaired' && wasStartedSince(pod, names, problem.repairedAt)) return undefined;
      return { problem, pod };
    },
  };
}

/** What the pod calls those that may be meant. */
function podVolumeNames({ metadata, spec }: Pod, claim: string | undefined): ReadonlySet<string> {
  const meant = (spec?.volumes ?? []).filter(({ name, csi, persistentVolumeClaim, ephemeral }) => {
    if (claim === undefined) return csi !== undefined;
    return persistentVolumeClaim?.claimName === claim || (ephemeral && claim === `${metadata.name}-${name}`);
  });
  return new Set(meant.map(({ name }) => name));
}

/**
 * A container has the mount that was there when it was started, for as long as it runs. Times are the node's own, as are those of the
 * agent; Kubernetes leaves out the parts of a second, so within that second it counts as started before.
 */
function wasStartedSince({ spec, status }: Pod, volumes: ReadonlySet<string>, atMs: number): boolean {
  const all = [...(spec?.containers ?? []), ...(spec?.initContainers ?? [])];
  const having = all.filter(({ volumeMounts = [], volumeDevices = [] }) =>
    [...volumeMounts, ...volumeDevices].some(({ name }) => volumes.has(name)),
  );
  const running = new Map(
    [...(status?.containerStatuses ?? []), ...(status?.initContainerStatuses ?? [])].flatMap(({ name, state }) =>
      state?.running?.startedAt === undefined ? [] : [[name, Date.parse(state.running.startedAt)]],
    ),
  );
  // One that does not run has no mount; it gets the new one.
  return having.every(({ name }) => (running.get(name) ?? Number.POSITIVE_INFINITY) > atMs);
}
