import { coalesce } from '#base/coalesce.ts';
import type { Volume } from '#core/model.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { unknownVolume } from '#core/volume-errors.ts';
import { handlesOf, isHandle } from '#core/volume-handles.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import type { Caches } from './caches.ts';

/** The volumeHandle and the store of a PersistentVolume. */
export const handleAndStoreOf = ({
  spec: { csi },
}: PersistentVolume): { readonly handle: string; readonly store: string | undefined } => ({
  handle: csi?.volumeHandle ?? '',
  store: csi?.volumeAttributes?.['store'],
});

/**
 * The volumeHandle of a PersistentVolume. Throws 'volume-unknown' for a bare name, as the CSI drivers do: a bare name refers to whichever
 * volume has it today.
 */
export function handleOf(volume: PersistentVolume): string {
  const { handle } = handleAndStoreOf(volume);
  if (!isHandle(handle)) throw unknownVolume(handle);
  return handle;
}

/** The values of our topology label in the node affinity of a PersistentVolume. Empty if its affinity does not use that label. */
export const topologiesOf = ({ spec }: Pick<PersistentVolume, 'spec'>): readonly string[] =>
  (spec.nodeAffinity?.required?.nodeSelectorTerms ?? []).flatMap(({ matchExpressions = [] }) =>
    matchExpressions.flatMap(({ key, values = [] }) => (key === nodeTopologyKey ? values : [])),
  );

/** The PersistentVolumes in the cache that refer to a volume. */
export const persistentVolumesOf = (
  { volumes }: Pick<Caches, 'volumes'>,
  volume: Pick<Volume, 'id' | 'store' | 'name'>,
): readonly PersistentVolume[] => handlesOf(volume).flatMap((handle) => volumes.byIndex('handle', handle));

/** Whether any PersistentVolume refers to the volume, by any of its handles. */
export type HasPersistentVolume = (
  volume: Pick<Volume, 'id' | 'store' | 'name'>,
  signal: AbortSignal,
) => Promise<boolean>;

/**
 * Asks the API server, since the cache may be behind: a user may have written a PersistentVolume by hand. It lists all
 * PersistentVolumes, since the API cannot select them by handle. Concurrent callers share one list.
 */
export function createHasPersistentVolume(
  client: Pick<KubeClient, 'list'>,
  caches: Pick<Caches, 'volumes'>,
): HasPersistentVolume {
  let handles: ReadonlySet<string> = new Set();
  let listSignal: AbortSignal;
  const listHandles = coalesce(async () => {
    const all = new Set<string>();
    for await (const { items } of client.list(persistentVolumes, {}, listSignal))
      for (const { spec } of items) if (spec.csi !== undefined) all.add(spec.csi.volumeHandle);
    handles = all;
  });
  return async (volume, signal) => {
    if (persistentVolumesOf(caches, volume).length > 0) return true;
    // All callers pass the signal of the process, so the shared list can use any of them.
    listSignal = signal;
    await listHandles();
    return handlesOf(volume).some((handle) => handles.has(handle));
  };
}
