import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { claims, evictions } from '#wire/kube/resources.ts';
import type { PersistentVolumeClaim, Pod } from '#wire/kube/types.ts';
import { createPodReader, podReference } from './affected-pods.ts';
import { ignoreNotFound } from './controller-parts.ts';
import { type Controller, createController } from './machinery/controller.ts';
import type { Events } from './machinery/events.ts';
import { type Again, again, type Done, done } from './machinery/outcome.ts';
import type { MountProblem } from './mount-problems.ts';
import { restartConsumers } from './names.ts';

/**
 * Evicts pods that only a restart helps, where the user of the claim wants that: by the annotation `stowage.dev/restart-consumers` on
 * the claim. It is the claim's, and not the class's or the store's: whether an application bears being restarted is known by who
 * runs it. Evicted, not deleted: disruption budgets hold.
 */
export interface Restarts extends Controller {
  /** It is looked at whether it is wanted, and possible; also when it is considered again and again. */
  consider(problem: MountProblem, claim: PersistentVolumeClaim): void;
}

export interface RestartsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly events: Events;
  /** Between two of them, in the whole cluster: one keeper that ends can concern all pods of a node. */
  readonly pauseMs?: number;
}

const defaultPauseMs = 5_000;
/** A budget that does not allow it now may do so later. */
const maxRetryMs = 120_000;

export function createRestarts({ client, clock, events, pauseMs = defaultPauseMs }: RestartsOptions): Restarts {
  /** By the pod's uid: the claim for which it is. */
  const candidates = new Map<string, { readonly problem: MountProblem; readonly claimed: MountProblem['pod'] }>();
  const reader = createPodReader(client);
  let nextAt = 0;

  async function reconcile(key: string, scope: Scope): Promise<Done | Again> {
    const want = candidates.get(key);
    if (want === undefined) return done;
    const { problem, claimed } = want;
    const { name } = claimed;
    // Both as they are now: what happens next is felt.
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
      // Others need not wait for a pod that stays.
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

  /** Throws what may pass: a budget that forbids it, among others. Forbidden: by Stowage's admission policy, or for lack of rights. */
  async function evict(
    pod: Parameters<typeof podReference>[0],
    { signal, log }: Scope,
  ): Promise<'evicted' | 'gone' | 'forbidden'> {
    const { namespace, name, uid } = pod;
    const metadata = { namespace, name };
    const body = { apiVersion: 'policy/v1', metadata, deleteOptions: { preconditions: { uid } } };
    try {
      await client.create(evictions, body, signal, { namespace, name, part: 'eviction' });
      return 'evicted';
    } catch (thrown) {
      const reason = reasonOf(thrown);
      // It went by itself, or another has its name.
      if (reason === 'NotFound' || reason === 'Conflict') return 'gone';
      if (reason !== 'Forbidden') throw thrown;
      log.warn('the API server does not allow to evict a pod', { pod: `${namespace}/${name}`, error: thrown });
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

/** Nobody would make another one in its place: then it stays. A kubelet makes its own again, whatever anybody evicts. */
function willBeRecreated({ metadata }: Pod): boolean {
  const owner = metadata.ownerReferences?.find(({ controller }) => controller === true);
  return owner !== undefined && owner.kind !== 'Node';
}
