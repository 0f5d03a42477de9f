import type { Clock } from '#base/clock.ts';
import type { TakeOverAction, TakeOverCandidate, TakeOverRequest, TakeOverService } from '#cli/take-over-service.ts';
import { type StoreObject, storeObjects } from '#controllers/store-object.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { KubeError, reasonOf } from '#wire/kube/errors.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { optionOf } from './deletion.ts';
import { directoryOf, type Export, exportOf, serverName } from './directories.ts';
import { createFinishing } from './finishing.ts';
import { type Cluster, holderOf, look, readCluster } from './looking.ts';
import { absent, createMoving, left } from './moving.ts';
import { type After, policyBefore, takenFrom, volumeAfter } from './objects.ts';

export interface TakingOverParts extends Pick<TakeOverRequest, 'store' | 'servers'> {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly patienceMs?: number;
}

const usualPatienceMs = 60_000;
const [mostTimes, pauseMs] = [10, 20];

export function createTakingOver(parts: TakingOverParts): TakeOverService {
  const { client, clock, signal, store, servers, patienceMs = usualPatienceMs } = parts;
  const { checked, move, keepData, change } = createMoving({ client, clock, signal, patienceMs });
  const { finish } = createFinishing({ client, signal, keepData, change });
  let seen: Cluster | undefined;

  const volume = (name: string): Promise<PersistentVolume | undefined> =>
    absent(client.get(persistentVolumes, { name }, signal));

  async function exported(deed: TakeOverAction): Promise<Export> {
    const object: StoreObject | undefined = await absent(client.get(storeObjects, { name: store }, signal));
    if (object === undefined)
      throw new StowageError(`there is no store '${store}' in the cluster`, {
        code: 'not-found',
        reason: 'store-unknown',
        action: 'See which there are with: kubectl get stores',
      });
    const at = exportOf(object.spec.uri);
    // There a volume of the directory's name can have another directory.
    if (at !== undefined && deed === 'take' && optionOf(object, 'pathTemplate') !== undefined)
      throw new StowageError(
        `'${store}' has the option pathTemplate: its volumes lie elsewhere than under their names`,
        {
          code: 'unsupported',
          reason: 'take-over-not-possible',
          action: 'Name a Store of the same export without pathTemplate.',
        },
      );
    if (at !== undefined) return at;
    throw new StowageError(`'${store}' is not on a file server`, {
      code: 'unsupported',
      reason: 'take-over-not-possible',
      action: 'Name a Store whose uri begins with nfs://, for the export that the volumes lie on.',
    });
  }

  /** The one before, and the one after if it is there. */
  async function both({
    from,
    to,
  }: TakeOverCandidate): Promise<readonly [PersistentVolume, PersistentVolume | undefined]> {
    const [before, after] = await Promise.all([volume(from), volume(to)]);
    if (before === undefined)
      throw left(`the PersistentVolume ${from} is gone`, 'Look again: kubectl stowage take-over');
    if (before.metadata.deletionTimestamp !== undefined)
      throw left(`the PersistentVolume ${from} is being deleted`, 'Finish it: kubectl stowage take-over --finish');
    if (after !== undefined && after.metadata.annotations?.[takenFrom] !== from)
      throw left(`the PersistentVolume ${to} is another's, or was finished`, '');
    return [before, after];
  }

  /** The one after, unless something is not as it has to be: then nothing is changed. */
  async function begin(
    before: PersistentVolume,
    claim: PersistentVolumeClaim | undefined,
    { directory }: TakeOverCandidate,
    { id, identity }: Pick<After, 'id' | 'identity'>,
  ): Promise<PersistentVolume> {
    if (id === '')
      throw left('its directory is no volume of the store', `See why: kubectl stowage store adopt ${store} --dry-run`);
    const isThere = claim?.spec.volumeName === before.metadata.name && claim?.metadata.deletionTimestamp === undefined;
    if (claim === undefined || !isThere)
      throw left('the claim is gone, or has another volume', 'Look again: kubectl stowage take-over');
    const holder = seen && holderOf(seen, [id, `${store}..${directory}`]);
    if (holder !== undefined) throw left(`the PersistentVolume ${holder} has that directory already`, '');
    const isReadOnly = directoryOf(before)?.isReadOnly === true;
    const kept = await keepData(before);
    const after = volumeAfter({ before: kept, claim, store, name: directory, id, identity, isReadOnly });
    return await client.create(persistentVolumes, after, signal);
  }

  async function goOn(before: PersistentVolume, after: PersistentVolume): Promise<PersistentVolume> {
    await keepData(before);
    return await keepData(after);
  }

  async function take(candidate: TakeOverCandidate, which: Pick<After, 'id' | 'identity'>): Promise<void> {
    const [before, there] = await both(candidate);
    const claim = await checked(before);
    const after = there === undefined ? await begin(before, claim, candidate, which) : await goOn(before, there);
    await move({ claim, from: before, to: after, memory: after });
  }

  async function undo(candidate: TakeOverCandidate): Promise<void> {
    const [before, after] = await both(candidate);
    if (after === undefined) throw left('it was not taken over', '');
    const claim = await checked(after);
    const [kept, memory] = [await keepData(before), await keepData(after)];
    await move({ claim, from: memory, to: kept, memory });
    const bound = await volume(candidate.from);
    if (bound === undefined) throw left(`the PersistentVolume ${candidate.from} is gone`, '');
    const policy = bound.metadata.annotations?.[policyBefore] ?? 'Retain';
    await change(bound, { persistentVolumeReclaimPolicy: policy }, { [policyBefore]: null });
    await absent(client.delete(persistentVolumes, { name: candidate.to }, { uid: after.metadata.uid }, signal));
  }

  /** Whatever Kubernetes says no to, for people. */
  async function told<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (thrown) {
      throw thrown instanceof KubeError ? refusedBy(thrown) : thrown;
    }
  }

  /** From what is there now, when Kubernetes or somebody else changed it at the same moment. */
  async function anew<T>(work: () => Promise<T>): Promise<T> {
    for (let times = 1; ; times++)
      try {
        return await work();
      } catch (thrown) {
        if (reasonOf(thrown) !== 'Conflict' || times === mostTimes) throw thrown;
        await clock.sleep(times * pauseMs, signal);
      }
  }

  return {
    findCandidates: (deed) =>
      told(async () => {
        const at = await exported(deed);
        seen = await readCluster(client, signal);
        return look(seen, store, at, new Set([at.server, ...servers.map(serverName)]));
      }),
    take: (candidate, id, identity) => told(() => anew(() => take(candidate, { id, identity }))),
    undo: (candidate) => told(() => anew(() => undo(candidate))),
    finish: (candidate, identity) => told(() => anew(() => finish(candidate, identity))),
    [Symbol.dispose]: () => client[Symbol.dispose](),
  };
}

function refusedBy(error: KubeError): StowageError {
  const { failure, status, said, message } = error;
  if (failure === 'canceled')
    return new StowageError('interrupted', { code: 'canceled', reason: 'interrupted', action: '', cause: error });
  if (reasonOf(error) === 'Conflict')
    return left('somebody changes it again and again', 'Repeat the command; repeating is safe.');
  if (status === 401 || status === 403)
    return new StowageError(said || message, {
      code: 'denied',
      reason: 'kubernetes-denied',
      action: 'Use a kubeconfig of an administrator of the cluster: --kubeconfig FILE, --context NAME',
      cause: error,
    });
  return new StowageError(`the API server says: ${said || message}`, {
    code: failure === 'deadline' ? 'deadline' : 'unavailable',
    reason: 'kubernetes-unreachable',
    action: 'See that this works: kubectl version. Repeat the command then; repeating is safe.',
    cause: error,
  });
}
