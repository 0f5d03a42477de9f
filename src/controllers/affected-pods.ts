import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { pods } from '#wire/kube/resources.ts';
import type { ObjectReference, Pod } from '#wire/kube/types.ts';
import { ignoreNotFound } from './controller-context.ts';
import type { MountProblem } from './mount-problems.ts';

export const podReference = ({ namespace, name, uid }: MountProblem['pod']): ObjectReference => ({
  apiVersion: 'v1',
  kind: 'Pod',
  namespace,
  name,
  uid,
});

/** A problem of a mount, with the running pod that has the mount. */
export interface AffectedPod {
  readonly problem: MountProblem;
  readonly pod: Pod;
}

/** Gets single pods when their mounts have problems, instead of watching all pods. */
export interface PodReader {
  /**
   * Undefined if the pod is gone, has ended or is being deleted, was replaced, is on another node than the one that reported, does not use
   * the claim, or was restarted after the remount. `claim` is the claim's name; undefined for an ephemeral volume of the pod.
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

/** The names, in the pod, of the volumes that the problem may concern. */
function podVolumeNames({ metadata, spec }: Pod, claim: string | undefined): ReadonlySet<string> {
  const matching = (spec?.volumes ?? []).filter(({ name, csi, persistentVolumeClaim, ephemeral }) => {
    if (claim === undefined) return csi !== undefined;
    return persistentVolumeClaim?.claimName === claim || (ephemeral && claim === `${metadata.name}-${name}`);
  });
  return new Set(matching.map(({ name }) => name));
}

/**
 * A running container keeps the mount that existed when it started. Both times are from the node's clock. Kubernetes truncates its times
 * to seconds, so a container that started within the same second counts as started before.
 */
function wasStartedSince({ spec, status }: Pod, volumes: ReadonlySet<string>, atMs: number): boolean {
  const all = [...(spec?.containers ?? []), ...(spec?.initContainers ?? [])];
  const mounting = all.filter(({ volumeMounts = [], volumeDevices = [] }) =>
    [...volumeMounts, ...volumeDevices].some(({ name }) => volumes.has(name)),
  );
  const startTimes = new Map(
    [...(status?.containerStatuses ?? []), ...(status?.initContainerStatuses ?? [])].flatMap(({ name, state }) =>
      state?.running?.startedAt === undefined ? [] : [[name, Date.parse(state.running.startedAt)]],
    ),
  );
  // A container that is not running has no mount, and will get the new one.
  return mounting.every(({ name }) => (startTimes.get(name) ?? Number.POSITIVE_INFINITY) > atMs);
}
