import type { Clock } from '#base/clock.ts';
import type { Candidate, TakeOverWish, TakingOver } from '#cli/taking-over.ts';
import { drivers, provisionedBy, volumeFinalizer } from '#controllers/names.ts';
import { type StoreObject, storeObjects } from '#controllers/store-object.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { KubeError, reasonOf } from '#wire/kube/errors.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import { directoryOf, type Export, exportOf, serverName } from './directories.ts';
import { type Cluster, holderOf, look, readCluster } from './looking.ts';
import { absent, createMoving, left } from './moving.ts';
import { nothingRemembered, policyBefore, takenFrom, volumeAfter } from './objects.ts';

export interface TakingOverParts extends Pick<TakeOverWish, 'store' | 'servers'> {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly patienceMs?: number;
}

const usualPatienceMs = 60_000;
const [mostTimes, pauseMs] = [10, 20];

export function createTakingOver(parts: TakingOverParts): TakingOver {
  const { client, clock, signal, store, servers, patienceMs = usualPatienceMs } = parts;
  const { move, keepData, change } = createMoving({ client, clock, signal, patienceMs });
  let seen: Cluster | undefined;

  const volume = (name: string): Promise<PersistentVolume | undefined> =>
    absent(client.get(persistentVolumes, { name }, signal));

  async function exported(): Promise<Export> {
    const object: StoreObject | undefined = await absent(client.get(storeObjects, { name: store }, signal));
    if (object === undefined)
      throw new StowageError(`there is no store '${store}' in the cluster`, {
        code: 'not-found',
        reason: 'store-unknown',
        action: 'See which there are with: kubectl get stores',
      });
    const at = exportOf(object.spec.uri);
    if (at !== undefined) return at;
    throw new StowageError(`'${store}' is not on a file server`, {
      code: 'unsupported',
      reason: 'take-over-not-possible',
      action: 'Name a Store whose uri begins with nfs://, for the export that the volumes lie on.',
    });
  }

  /** The one before, and the one after if it is there. */
  async function both({ from, to }: Candidate): Promise<readonly [PersistentVolume, PersistentVolume | undefined]> {
    const [before, after] = await Promise.all([volume(from), volume(to)]);
    if (before === undefined)
      throw left(`the PersistentVolume ${from} is gone`, 'Look again: kubectl stowage take-over');
    if (before.metadata.deletionTimestamp !== undefined)
      throw left(`the PersistentVolume ${from} is being deleted`, 'Finish it: kubectl stowage take-over --finish');
    if (after !== undefined && after.metadata.annotations?.[takenFrom] !== from)
      throw left(`the PersistentVolume ${to} is another's, or was finished`, '');
    return [before, after];
  }

  async function successor(before: PersistentVolume, { directory, claim: key }: Candidate, id: string) {
    const [namespace = '', name = ''] = (key ?? '').split('/');
    const claim = await absent(client.get(claims, { namespace, name }, signal));
    if (claim === undefined || claim.spec.volumeName !== before.metadata.name)
      throw left('the claim is gone, or has another volume', 'Look again: kubectl stowage take-over');
    const holder = seen && holderOf(seen, [id, `${store}..${directory}`]);
    if (holder !== undefined) throw left(`the PersistentVolume ${holder} has that directory already`, '');
    const isReadOnly = directoryOf(before)?.isReadOnly === true;
    return await client.create(
      persistentVolumes,
      volumeAfter({ before, claim, store, name: directory, id, isReadOnly }),
      signal,
    );
  }

  async function take(candidate: Candidate, id: string): Promise<void> {
    const [before, there] = await both(candidate);
    const kept = await keepData(before);
    const after = there === undefined ? await successor(kept, candidate, id) : await keepData(there);
    await move({ from: kept, to: after, memory: after });
  }

  async function undo(candidate: Candidate): Promise<void> {
    const [before, after] = await both(candidate);
    if (after === undefined) throw left('it was not taken over', '');
    const [kept, memory] = [await keepData(before), await keepData(after)];
    await move({ from: memory, to: kept, memory });
    const bound = await volume(candidate.from);
    if (bound === undefined) throw left(`the PersistentVolume ${candidate.from} is gone`, '');
    const policy = bound.metadata.annotations?.[policyBefore] ?? 'Retain';
    await change(bound, { persistentVolumeReclaimPolicy: policy }, { [policyBefore]: null });
    await absent(client.delete(persistentVolumes, { name: candidate.to }, { uid: after.metadata.uid }, signal));
  }

  /** Now it is as any that Stowage made itself, and ends as the one before would have. */
  async function finish({ from, to }: Candidate): Promise<void> {
    const after = await volume(to);
    if (after === undefined || after.metadata.annotations?.[takenFrom] !== from) return;
    const { claimRef } = after.spec;
    const { namespace = '', name = '', uid } = claimRef ?? {};
    const claim = await absent(client.get(claims, { namespace, name }, signal));
    if (claim?.spec.volumeName !== to || claim.metadata.uid !== uid)
      throw left(
        'its claim is gone, or has another volume',
        `Repeat take-over, or delete the PersistentVolumes ${from} and ${to} yourself: the data stay.`,
      );
    const { annotations, finalizers = [] } = after.metadata;
    // Kubernetes knows a third one, which is over for all but the oldest kinds of volumes.
    const policy = annotations[policyBefore] === 'Delete' ? 'Delete' : 'Retain';
    const ended = await client.patch(
      persistentVolumes,
      { name: to },
      {
        kind: 'merge',
        body: {
          metadata: {
            ...{ uid: after.metadata.uid, resourceVersion: after.metadata.resourceVersion },
            annotations: { [provisionedBy]: drivers.anywhere },
            finalizers: [...new Set([...finalizers, volumeFinalizer])],
          },
          spec: { persistentVolumeReclaimPolicy: policy },
        },
      },
      signal,
    );
    const before = await volume(from);
    if (before !== undefined) {
      const kept = await keepData(before);
      await absent(client.delete(persistentVolumes, { name: from }, { uid: kept.metadata.uid }, signal));
    }
    await change(ended, {}, nothingRemembered);
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
  async function anew(work: () => Promise<void>): Promise<void> {
    for (let times = 1; ; times++)
      try {
        return await work();
      } catch (thrown) {
        if (reasonOf(thrown) !== 'Conflict' || times === mostTimes) throw thrown;
        await clock.sleep(times * pauseMs, signal);
      }
  }

  return {
    look: () =>
      told(async () => {
        const at = await exported();
        seen = await readCluster(client, signal);
        return look(seen, store, at, new Set([at.server, ...servers.map(serverName)]));
      }),
    take: (candidate, id) => told(() => anew(() => take(candidate, id))),
    undo: (candidate) => told(() => anew(() => undo(candidate))),
    finish: (candidate) => told(() => anew(() => finish(candidate))),
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
