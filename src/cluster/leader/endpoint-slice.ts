import { isIPv6 } from 'node:net';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { endpointSlices } from '#wire/kube/resources.ts';
import type { EndpointSlice } from '#wire/kube/types.ts';
import { createWatchedObject } from '#wire/kube/watched-object.ts';
import { leaderObjectNames } from '../names.ts';
import { runReconcileLoop } from './reconcile-loop.ts';

export interface LeaderSliceOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly namespace: string;
  /** The address of this pod, IPv4 or IPv6. */
  readonly address: string;
  readonly port: number;
}

/** How often to compare the EndpointSlice, in case the watch misses a change. */
const resyncMs = 60_000;
const retryMs = 5_000;
const removeTimeoutMs = 3_000;

const labels = {
  'kubernetes.io/service-name': leaderObjectNames.service,
  // Otherwise Kubernetes' own EndpointSlice controller would manage it, and delete it.
  'endpointslice.kubernetes.io/managed-by': 'stowage.dev',
};

function sliceOf({ namespace, address, port }: LeaderSliceOptions): EndpointSlice {
  return {
    metadata: { namespace, name: leaderObjectNames.slice, labels },
    addressType: isIPv6(address) ? 'IPv6' : 'IPv4',
    endpoints: [{ addresses: [address], conditions: { ready: true, serving: true, terminating: false } }],
    ports: [{ name: leaderObjectNames.port, port, protocol: 'TCP' }],
  };
}

/** The fields that Stowage sets, for comparison. */
const fingerprintOf = ({ metadata, addressType, endpoints, ports }: EndpointSlice): string =>
  JSON.stringify([
    Object.keys(labels).map((key) => metadata.labels?.[key]),
    addressType,
    (endpoints ?? []).map(({ addresses, conditions }) => [addresses, conditions?.ready, conditions?.serving]),
    (ports ?? []).map(({ name, port, protocol }) => [name, port, protocol]),
  ]);

/** Points the Service to this process, and repairs the EndpointSlice when another client changes it, until the signal aborts. */
export async function maintainLeaderSlice(options: LeaderSliceOptions, scope: Scope): Promise<void> {
  const { client, clock, namespace } = options;
  const slice = createWatchedObject({
    client,
    clock,
    namespace,
    resource: endpointSlices,
    name: leaderObjectNames.slice,
  });
  const wanted = sliceOf(options);

  async function writeSlice(found: EndpointSlice | undefined, signal: AbortSignal): Promise<void> {
    if (found === undefined) {
      await client.create(endpointSlices, wanted, signal);
      return;
    }
    if (found.addressType === wanted.addressType) {
      const { resourceVersion, uid, annotations = {} } = found.metadata;
      const metadata = { ...wanted.metadata, resourceVersion: resourceVersion ?? '', uid: uid ?? '', annotations };
      await client.update(endpointSlices, { ...wanted, metadata }, signal);
      return;
    }
    const { uid } = found.metadata;
    await client.delete(endpointSlices, { namespace, name: leaderObjectNames.slice }, { uid }, signal);
    await client.create(endpointSlices, wanted, signal);
  }

  async function reconcile({ signal, log }: Scope): Promise<number> {
    const found = slice.object;
    if (found !== undefined && fingerprintOf(found) === fingerprintOf(wanted)) return resyncMs;
    try {
      await writeSlice(found, signal);
      log.info('the Service points to this process', { address: options.address, port: options.port });
      return resyncMs;
    } catch (thrown) {
      // The watch reports the concurrent change, and triggers the next reconcile.
      if (['Conflict', 'AlreadyExists', 'NotFound'].includes(reasonOf(thrown))) return retryMs;
      throw thrown;
    }
  }

  await runReconcileLoop({ objectName: 'EndpointSlice', clock, objects: [slice], reconcile }, scope);
}

/** Removes the EndpointSlice before an orderly shutdown, unless it points to another process. Never throws. */
export async function removeLeaderSlice(options: LeaderSliceOptions, { signal, log }: Scope): Promise<void> {
  const { client, clock, namespace } = options;
  const key = { namespace, name: leaderObjectNames.slice };
  using limit = clock.deadline(removeTimeoutMs, signal);
  try {
    const found = await client.get(endpointSlices, key, limit.signal);
    if (fingerprintOf(found) !== fingerprintOf(sliceOf(options))) return;
    const { uid, resourceVersion } = found.metadata;
    await client.delete(endpointSlices, key, { uid, resourceVersion }, limit.signal);
  } catch (error) {
    if (reasonOf(error) !== 'NotFound') log.warn('the Service still points to this process', { error });
  }
}
