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
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import type { MountProblem } from './mount-problems.ts';
import { restartConsumersAnnotation } from './names.ts';

/**
 * Evicts pods that only a restart helps, if the claim has the annotation `stowage.dev/restart-consumers`. The annotation is on the claim,
 * not on the class or the store, because the owner of the application knows whether it tolerates a restart. Eviction, unlike
 * deletion, respects disruption budgets.
 */
export interface Restarts extends Controller {
  /** Evicts the pod if the claim requests it and it is possible. Can be called repeatedly for the same pod. */
  requestRestart(problem: MountProblem, claim: PersistentVolumeClaim): void;
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
  const candidates = new Map<string, { readonly problem: MountProblem; readonly claimName: MountProblem['pod'] }>();
  const reader = createPodReader(client);
  let nextEvictionAt = 0;

  async function reconcile(key: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    const candidate = candidates.get(key);
    if (candidate === undefined) return done;
    const { problem, claimName } = candidate;
    const { name } = claimName;
    // Get the claim and the pod from the API server: an eviction cannot be undone.
    const claim = await ignoreNotFound(client.get(claims, claimName, scope.signal));
    const isRequested =
      claim?.metadata.uid === claimName.uid && claim.metadata.annotations?.[restartConsumersAnnotation] === 'true';
    const affected = isRequested ? await reader.affectedPod(problem, name, scope) : undefined;
    if (affected === undefined || !willBeRecreated(affected.pod)) return forget(key);
    const waitMs = nextEvictionAt - clock.elapsed();
    if (waitMs > 0) return requeueAfter(waitMs);
    nextEvictionAt = clock.elapsed() + pauseMs;
    const outcome = await evict(problem.pod, scope);
    if (outcome === 'gone') return forget(key);
    if (outcome === 'forbidden') {
      // A pod that stays must not delay the next eviction.
      nextEvictionAt = clock.elapsed();
      const note = `Not evicted, although the mount of claim '${name}' was lost and remounted: Stowage may not evict pods in this namespace. Restart the pod yourself.`;
      const event = { type: 'Warning', reason: 'RestartForbidden', action: 'Evict', note } as const;
      events.report({ ...event, regarding: podReference(problem.pod) });
      return requeueAfter(maxRetryMs);
    }
    scope.log.warn('evicted a pod whose mount was remounted', {
      pod: `${problem.pod.namespace}/${problem.pod.name}`,
    });
    const note = `Evicted: the mount of claim '${name}' was lost and remounted, and only a new pod sees the new mount. The claim requests this with ${restartConsumersAnnotation}.`;
    const event = { type: 'Normal', reason: 'RestartedForVolume', action: 'Evict', note } as const;
    events.report({ ...event, regarding: podReference(problem.pod) });
    return forget(key);
  }

  function forget(key: string): ReconcileDone {
    candidates.delete(key);
    return done;
  }

  /** Throws errors that are worth a retry, such as a disruption budget. 'forbidden': by an admission policy, or for lack of permission. */
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
    maxRetryMs,
  });
  return {
    ...controller,
    requestRestart: (problem, { metadata: { namespace = '', name = '', uid = '' } }) => {
      const isKnown = candidates.has(problem.pod.uid);
      candidates.set(problem.pod.uid, { problem, claimName: { namespace, name, uid } });
      if (!isKnown) controller.add(problem.pod.uid);
    },
  };
}

/** A pod without a controller would not be recreated, so it stays. Evicting a static pod, whose owner is its Node, has no effect. */
function willBeRecreated({ metadata }: Pod): boolean {
  const owner = metadata.ownerReferences?.find(({ controller }) => controller === true);
  return owner !== undefined && owner.kind !== 'Node';
}
