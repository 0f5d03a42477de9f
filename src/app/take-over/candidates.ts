import type { TakeOverCandidate, TakeOverCandidates } from '#cli/take-over-service.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import { isVolumeName } from '#core/names.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { claims, persistentVolumes, pods, type Resource } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume, PersistentVolumeClaim, Pod } from '#wire/kube/types.ts';
import { directoryOf, type Export, pathBelow } from './directories.ts';
import { replacementName, takenFrom } from './replacement-volume.ts';

export interface Cluster {
  readonly volumes: ReadonlyMap<string, PersistentVolume>;
  /** By `namespace/name`. */
  readonly claims: ReadonlyMap<string, PersistentVolumeClaim>;
  /** The pods that use them, by `namespace/name`. */
  readonly users: ReadonlyMap<string, readonly string[]>;
}

const pvcProtectionFinalizer = 'kubernetes.io/pvc-protection';
const maxNameLength = 253;

async function listAll<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  signal: AbortSignal,
  namespace?: string,
): Promise<readonly T[]> {
  const found: T[] = [];
  for await (const { items } of client.list(resource, { namespace }, signal)) found.push(...items);
  return found;
}

const keyOf = ({ metadata: { namespace = '', name = '' } }: KubeObject): string => `${namespace}/${name}`;

export async function readCluster(client: KubeClient, signal: AbortSignal): Promise<Cluster> {
  const [volumes, claimed, running] = await Promise.all([
    listAll(client, persistentVolumes, signal),
    listAll(client, claims, signal),
    listAll(client, pods, signal),
  ]);
  return {
    volumes: new Map(volumes.map((one) => [one.metadata.name ?? '', one])),
    claims: new Map(claimed.map((one) => [keyOf(one), one])),
    users: usersIn(running),
  };
}

/** As Kubernetes itself determines it: pods that have ended do not count. */
function usersIn(running: readonly Pod[]): ReadonlyMap<string, readonly string[]> {
  const users = new Map<string, string[]>();
  for (const { metadata, spec, status } of running) {
    const { namespace = '', name = '' } = metadata;
    if (status?.phase === 'Succeeded' || status?.phase === 'Failed') continue;
    for (const volume of spec?.volumes ?? []) {
      const claim = volume.persistentVolumeClaim?.claimName ?? (volume.ephemeral && `${name}-${volume.name}`);
      if (claim === undefined) continue;
      const key = `${namespace}/${claim}`;
      users.set(key, [...(users.get(key) ?? []), name]);
    }
  }
  return users;
}

export async function usersOf(
  client: KubeClient,
  { metadata }: PersistentVolumeClaim,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const { namespace = '', name = '' } = metadata;
  return usersIn(await listAll(client, pods, signal, namespace)).get(`${namespace}/${name}`) ?? [];
}

export const usedByText = (users: readonly string[]): string => {
  const shown = users.slice(0, 3).join(', ');
  const more = users.length > 3 ? ` and ${users.length - 3} more` : '';
  return `used by pod${users.length === 1 ? '' : 's'} ${shown}${more}: scale its workload to 0, then repeat the command`;
};

/** Kubernetes puts one finalizer on every claim; any other one would block the claim's deletion. Empty: none does. */
export const otherFinalizersText = ({ metadata }: PersistentVolumeClaim): string => {
  const others = (metadata.finalizers ?? []).filter((one) => one !== pvcProtectionFinalizer);
  return others.length > 0 ? `the claim has other finalizers: ${others.join(', ')}` : '';
};

/** Lists the volumes that can be taken over. `servers`: all names of the export's server. */
export function findCandidates(
  cluster: Cluster,
  store: string,
  at: Export,
  servers: ReadonlySet<string>,
): TakeOverCandidates {
  const otherServers = new Set<string>();
  const found: { readonly volume: PersistentVolume; readonly below: string }[] = [];
  for (const volume of cluster.volumes.values()) {
    const directory = directoryOf(volume);
    if (directory === undefined) continue;
    const path = pathBelow(at, directory);
    if (!servers.has(directory.server)) otherServers.add(directory.server);
    else if (path !== undefined && !isBeingDeleted(cluster, volume)) found.push({ volume, below: path });
  }
  const times = Map.groupBy(found, (one) => one.below);
  const volumesWithDirectory = (path: string): readonly string[] =>
    (times.get(path) ?? []).map(({ volume }) => nameOf(volume));
  const candidates = found.map(({ volume, below: path }): TakeOverCandidate => {
    const to = replacementName(nameOf(volume));
    const claimRef = (replacementOf(cluster, volume) ?? volume).spec.claimRef;
    const claim = claimRef === undefined ? null : `${claimRef.namespace ?? ''}/${claimRef.name ?? ''}`;
    const others = volumesWithDirectory(path).filter((name) => name !== nameOf(volume));
    return { claim, from: nameOf(volume), to, directory: path, ...stateOf(cluster, volume, claim, path, others) };
  });
  return {
    candidates: [...candidates, ...replacementsWithoutOriginal(cluster, store)],
    otherServers: [...otherServers].sort(),
  };
}

const nameOf = ({ metadata }: PersistentVolume): string => metadata.name ?? '';

/** The PersistentVolume that replaces the given one. */
function replacementOf({ volumes }: Pick<Cluster, 'volumes'>, before: PersistentVolume): PersistentVolume | undefined {
  const after = volumes.get(replacementName(nameOf(before)));
  return after?.metadata.annotations?.[takenFrom] === nameOf(before) ? after : undefined;
}

/** The volume is being deleted and only waits for its provisioner. */
const isBeingDeleted = (cluster: Cluster, volume: PersistentVolume): boolean =>
  volume.metadata.deletionTimestamp !== undefined && replacementOf(cluster, volume) === undefined;

/** Replacements that were finished, or whose predecessor was deleted. */
function replacementsWithoutOriginal({ volumes }: Cluster, store: string): readonly TakeOverCandidate[] {
  return [...volumes.values()].flatMap((volume) => {
    const from = volume.metadata.annotations?.[takenFrom];
    const { claimRef, csi } = volume.spec;
    if (from === undefined || volumes.has(from) || csi?.volumeAttributes?.['store'] !== store) return [];
    return {
      claim: `${claimRef?.namespace ?? ''}/${claimRef?.name ?? ''}`,
      from,
      to: nameOf(volume),
      directory: csi.volumeAttributes['name'] ?? '',
      state: 'taken-over',
      detail: 'the original PersistentVolume was deleted: the take-over can only be finished',
    } as const;
  });
}

type CandidateState = Pick<TakeOverCandidate, 'state' | 'detail'>;
const impossible = (detail: string): CandidateState => ({ state: 'impossible', detail });

function stateOf(
  cluster: Cluster,
  before: PersistentVolume,
  key: string | null,
  path: string,
  others: readonly string[],
): CandidateState {
  const claim = cluster.claims.get(key ?? '');
  const after = replacementOf(cluster, before);
  if (after !== undefined && claim?.spec.volumeName === nameOf(after) && claim.status?.phase === 'Bound')
    return { state: 'taken-over', detail: '' };
  const users = cluster.users.get(key ?? '') ?? [];
  // During a move, in either direction, one of the two waits for a claim. If neither does, the claim was bound and then deleted by its user.
  if (
    after !== undefined &&
    claim === undefined &&
    [before, after].every(({ spec }) => spec.claimRef?.uid !== undefined)
  )
    return {
      state: 'unclaimed',
      detail: `its claim was deleted. The data is kept, even after: kubectl delete pv ${nameOf(before)} ${nameOf(after)}`,
    };
  if (after !== undefined) {
    // A pod that uses the old volume blocks only the continuation.
    const isUsed = users.length > 0 && claim?.spec.volumeName === nameOf(before);
    return {
      state: 'begun',
      detail: `the take-over was interrupted: ${isUsed ? usedByText(users) : 'repeat the command'}`,
    };
  }
  if (claim === undefined || claim.spec.volumeName !== nameOf(before))
    return { state: 'unclaimed', detail: 'no claim is bound to the PersistentVolume' };
  if (path === '') return impossible('it uses the whole export of the store, not a directory on the export');
  if (path.includes('/'))
    return impossible(
      `its directory is not directly below the export: use a Store for the parent directory, ${path.replace(/\/[^/]*$/, '')}`,
    );
  if (!isVolumeName(path))
    return impossible('the name of its directory is not valid for a volume: see docs/volumes.md');
  if (others.length > 0)
    return impossible(
      `${others.join(', ')} has the same directory: in Stowage, one directory belongs to one PersistentVolume`,
    );
  if (claim.metadata.deletionTimestamp !== undefined) return impossible('the claim is being deleted');
  if (before.metadata.deletionTimestamp !== undefined) return impossible('the PersistentVolume is being deleted');
  if (otherFinalizersText(claim) !== '') return impossible(otherFinalizersText(claim));
  if (replacementName(nameOf(before)).length > maxNameLength)
    return impossible('the name of the PersistentVolume is too long');
  if (cluster.volumes.has(replacementName(nameOf(before))))
    return impossible(`a different PersistentVolume already has the name ${replacementName(nameOf(before))}`);
  return users.length > 0 ? { state: 'used', detail: usedByText(users) } : { state: 'ready', detail: '' };
}

/** The PersistentVolume that already has this volume of Stowage's. */
export function holderOf({ volumes }: Cluster, handles: readonly string[]): string | undefined {
  for (const [name, { spec }] of volumes)
    if (spec.csi?.driver === fileDriver.name && handles.includes(spec.csi.volumeHandle)) return name;
  return undefined;
}
