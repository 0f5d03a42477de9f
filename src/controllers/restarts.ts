import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { claims, evictions } from '#wire/kube/resources.ts';
import type { PersistentVolumeClaim, Pod } from '#wire/kube/types.ts';
import { createPodReader, podReference } from './affected-pods.ts';
import { ignoreNotFound } from './controller-context.ts';
import { type Controller, createController } from './machinery/controller.ts';
import type { Events } from './machinery/events.ts';
import { type Again, again, type Done, done } from './machinery/outcome.ts';
import type { MountProblem } from './mount-problems.ts';
import { restartConsumers } from './names.ts';

/**
 * Evicts pods that only a restart helps, if the claim has the annotation `stowage.dev/restart-consumers`. The annotation is on the claim,
 * not on the class or the store, because the owner of the application knows whether it tolerates a restart. Eviction, unlike
 * deletion, respects disruption budgets.
 */
export interface Restarts extends Controller {
  /** Evicts the pod if the claim asks for it and it is possible. Can be called repeatedly for the same pod. */
  consider(problem: MountProblem, claim: PersistentVolumeClaim): void;
}

export interface RestartsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly events: Events;
  /** The pause between two evictions in the whole cluster: one dead keeper can affect all pods of a node. */
  readonly pauseMs?: number;
}

const defaultPauseMs = 5_000;
/** A disruption budget may allow the eviction later. */
const maxRetryMs = 120_000;

export function createRestarts({ client, clock, events, pauseMs = defaultPauseMs }: RestartsOptions): Restarts {
  /** The problem and the claim, by the pod's uid. */
  const candidates = new Map<string, { readonly problem: MountProblem; readonly claimed: MountProblem['pod'] }>();
  const reader = createPodReader(client);
  let nextAt = 0;

  async function reconcile(key: string, scope: Scope): Promise<Done | Again> {
    const want = candidates.get(key);
    if (want === undefined) return done;
    const { problem, claimed } = want;
    const { name } = claimed;
    // Get the claim and the pod from the API server: an eviction cannot be undone.
    const claim = await ignoreNotFound(client.get(claims, claimed, scope.signal));
    const isWanted = claim?.metadata.uid === claimed.uid && claim.metadata.annotations?.[restartConsumers] === 'true';
    const affected = isWanted ? await reader.affectedPod(problem, name, scope) : undefined;
    if (affected === undefined || !willBeRecreated(affected.pod)) return forget(key);
    const waitMs = nextAt - clock.elapsed();
    if (waitMs > 0) return again(waitMs);
    nextAt = clock.elapsed() + pauseMs;
    const outcome = await evict(problem.pod, scope);
    if (outcome === 'gone') return forget(key);
    if (outcome === 'forbidden') {
      // A pod that stays must not delay the next eviction.
      nextAt = clock.elapsed();
      const note = `Not evicted, although the mount of claim '${name}' was lost and remounted: Stowage may not evict pods in this namespace. Restart the pod yourself.`;
      const about = { type: 'Warning', reason: 'RestartForbidden', action: 'Evict', note } as const;
      events.report({ ...about, regarding: podReference(problem.pod) });
      return again(maxRetryMs);
    }
    scope.log.warn('evicted a pod whose mount was remounted', {
      pod: `${problem.pod.namespace}/${problem.pod.name}`,
    });
    const note = `Evicted: the mount of claim '${name}' was lost and remounted, and only a new pod sees the new mount. The claim requests this with ${restartConsumers}.`;
    const about = { type: 'Normal', reason: 'RestartedForVolume', action: 'Evict', note } as const;
    events.report({ ...about, regarding: podReference(problem.pod) });
    return forget(key);
  }

  function forget(key: string): Done {
    candidates.delete(key);
    return done;
  }

  /** Throws errors that are worth a retry, such as a disruption budget. 'forbidden': by the admission policy, or for lack of rights. */
  async function evict(
    pod: Parameters<typeof podReference>[0],
    { signal, log }: Scope,
  ): Promise<'evicted' | 'gone' | 'forbidden'> {
    const { namespace, name, uid } = pod;
    const metadata = { namespace, name };
    const body = { apiVersion: 'policy/v1', metadata, deleteOptions: { preconditions: { uid } } };
    try {
      await client.create(evictions, body, signal, { namespace, name, subresource: 'eviction' });
      return 'evicted';
    } catch (thrown) {
      const reason = reasonOf(thrown);
      // The pod is gone, or another pod has its name.
      if (reason === 'NotFound' || reason === 'Conflict') return 'gone';
      if (reason !== 'Forbidden') throw thrown;
      log.warn('the API server forbids the eviction of a pod', { pod: `${namespace}/${name}`, error: thrown });
      return 'forbidden';
    }
  }

  const controller = createController({
    name: 'restarts',
    clock,
    reconcile,
    workers: 1,
    firstRetryMs: 5_000,
    maxRetryMs: maxRetryMs,
  });
  return {
    ...controller,
    consider: (problem, { metadata: { namespace = '', name = '', uid = '' } }) => {
      const known = candidates.has(problem.pod.uid);
      candidates.set(problem.pod.uid, { problem, claimed: { namespace, name, uid } });
      if (!known) controller.add(problem.pod.uid);
    },
  };
}

/** A pod without a controller would not be recreated, so it stays. Evicting a static pod, whose owner is its Node, has no effect. */
function willBeRecreated({ metadata }: Pod): boolean {
  const owner = metadata.ownerReferences?.find(({ controller }) => controller === true);
  return owner !== undefined && owner.kind !== 'Node';
}
