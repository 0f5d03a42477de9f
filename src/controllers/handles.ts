import { coalesced } from '#base/coalesced.ts';
import type { Volume } from '#core/model.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { unknownVolume } from '#core/volume-errors.ts';
import { handlesOf, isHandle } from '#core/volume-handles.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import type { Caches } from './caches.ts';

/** What a PersistentVolume says of its volume. */
export const handleAndStoreOf = ({
  spec: { csi },
}: PersistentVolume): { readonly handle: string; readonly store: string | undefined } => ({
  handle: csi?.volumeHandle ?? '',
  store: csi?.volumeAttributes?.['store'],
});

/**
 * What a PersistentVolume calls its volume. Throws 'volume-unknown' for a bare name, as the CSI drivers do: it would mean whichever volume
 * has that name today.
 */
export function handleOf(volume: PersistentVolume): string {
  const { handle } = handleAndStoreOf(volume);
  if (!isHandle(handle)) throw unknownVolume(handle);
  return handle;
}

/** The nodes that a PersistentVolume of a node's store is bound to, as their labels say it. Empty: it does not say so in our words. */
export const topologiesOf = ({ spec }: Pick<PersistentVolume, 'spec'>): readonly string[] =>
  (spec.nodeAffinity?.required?.nodeSelectorTerms ?? []).flatMap(({ matchExpressions = [] }) =>
    matchExpressions.flatMap(({ key, values = [] }) => (key === nodeTopologyKey ? values : [])),
  );

/** Those of a volume that are known. */
export const persistentVolumesOf = (
  { volumes }: Pick<Caches, 'volumes'>,
  volume: Pick<Volume, 'id' | 'store' | 'name'>,
): readonly PersistentVolume[] => handlesOf(volume).flatMap((handle) => volumes.by('handle', handle));

/** Whether any PersistentVolume has it, by whatever handle. */
export type HasPersistentVolume = (
  volume: Pick<Volume, 'id' | 'store' | 'name'>,
  signal: AbortSignal,
) => Promise<boolean>;

/**
 * As the API server itself knows, which may be newer than what was told to us: somebody may have written one by hand. All of them are
 * listed, since they cannot be asked for by their handles; those who ask at the same time share a list.
 */
export function createHasPersistentVolume(
  client: Pick<KubeClient, 'list'>,
  caches: Pick<Caches, 'volumes'>,
): HasPersistentVolume {
  let handles: ReadonlySet<string> = new Set();
  let ending: AbortSignal;
  const read = coalesced(async () => {
    const all = new Set<string>();
    for await (const { items } of client.list(persistentVolumes, {}, ending))
      for (const { spec } of items) if (spec.csi !== undefined) all.add(spec.csi.volumeHandle);
    handles = all;
  });
  return async (volume, signal) => {
    if (persistentVolumesOf(caches, volume).length > 0) return true;
    // Of the process: the same for all who ask.
    ending = signal;
    await read();
    return handlesOf(volume).some((handle) => handles.has(handle));
  };
}
