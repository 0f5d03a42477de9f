import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { endpoints } from '#wire/kube/resources.ts';
import type { Endpoints } from '#wire/kube/types.ts';
import { createWatchedObject } from '#wire/kube/watched-object.ts';
import { leaderObjectNames } from '../names.ts';
import { runReconcileLoop } from './reconcile-loop.ts';

export interface LeaderEndpointsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly namespace: string;
  readonly address: string;
  readonly port: number;
  /** The name of the pod that has this address. */
  readonly pod: string;
}

const resyncMs = 60_000;
const retryMs = 5_000;
const removeTimeoutMs = 3_000;

/** Otherwise Kubernetes would mirror the Endpoints to a second EndpointSlice. */
const labels = { 'endpointslice.kubernetes.io/skip-mirror': 'true', 'app.kubernetes.io/managed-by': 'stowage.dev' };

function endpointsOf({ namespace, address, port, pod }: LeaderEndpointsOptions): Endpoints {
  return {
    metadata: { namespace, name: leaderObjectNames.service, labels },
    subsets: [
      {
        addresses: [{ ip: address, targetRef: { kind: 'Pod', namespace, name: pod } }],
        ports: [{ name: leaderObjectNames.port, port, protocol: 'TCP' }],
      },
    ],
  };
}

const fingerprintOf = ({ subsets = [] }: Endpoints): string =>
  JSON.stringify(
    subsets.map(({ addresses = [], ports = [] }) => [
      addresses.map(({ ip, targetRef }) => [ip, targetRef?.name]),
      ports.map(({ name, port }) => [name, port]),
    ]),
  );

/**
 * Maintains the leader's address as Endpoints too, until the signal aborts: the API server's proxy uses Endpoints, not EndpointSlices, and
 * connects only to addresses of pods (Kubernetes 1.35, pkg/registry/core/service/storage).
 */
export async function maintainLeaderEndpoints(options: LeaderEndpointsOptions, scope: Scope): Promise<void> {
  const { client, clock, namespace } = options;
  const watchedEndpoints = createWatchedObject({
    client,
    clock,
    namespace,
    resource: endpoints,
    name: leaderObjectNames.service,
  });
  const wanted = endpointsOf(options);
  const reconcile = async ({ signal }: Scope): Promise<number> => {
    const found = watchedEndpoints.object;
    if (found !== undefined && fingerprintOf(found) === fingerprintOf(wanted)) return resyncMs;
    try {
      if (found === undefined) await client.create(endpoints, wanted, signal);
      else {
        const { resourceVersion = '', uid = '' } = found.metadata;
        await client.update(endpoints, { ...wanted, metadata: { ...wanted.metadata, resourceVersion, uid } }, signal);
      }
      return resyncMs;
    } catch (thrown) {
      // The watch reports the concurrent change, and triggers the next reconcile.
      if (['Conflict', 'AlreadyExists', 'NotFound'].includes(reasonOf(thrown))) return retryMs;
      throw thrown;
    }
  };
  await runReconcileLoop({ objectName: 'Endpoints', clock, objects: [watchedEndpoints], reconcile }, scope);
}

/** Removes the Endpoints before an orderly shutdown, unless they point to another process. Never throws. */
export async function removeLeaderEndpoints(options: LeaderEndpointsOptions, { signal, log }: Scope): Promise<void> {
  const { client, clock, namespace } = options;
  const key = { namespace, name: leaderObjectNames.service };
  using limit = clock.deadline(removeTimeoutMs, signal);
  try {
    const found = await client.get(endpoints, key, limit.signal);
    if (fingerprintOf(found) !== fingerprintOf(endpointsOf(options))) return;
    const { uid, resourceVersion } = found.metadata;
    await client.delete(endpoints, key, { uid, resourceVersion }, limit.signal);
  } catch (error) {
    if (reasonOf(error) !== 'NotFound') log.warn("the API server's proxy still points to this process", { error });
  }
}
