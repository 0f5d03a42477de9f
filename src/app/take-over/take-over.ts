import type { Clock } from '#base/clock.ts';
import type { TakeOverAction, TakeOverCandidate, TakeOverRequest, TakeOverService } from '#cli/take-over-service.ts';
import { type StoreObject, storeObjects } from '#controllers/store-object.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { KubeError, reasonOf } from '#wire/kube/errors.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type Cluster, findCandidates, holderOf, readCluster } from './candidates.ts';
import { checkedClaim, createClaimMove, notPossible, undefinedIfMissing } from './claim-move.ts';
import { optionOf } from './delete-policy.ts';
import { directoryOf, type Export, exportOf, serverName } from './directories.ts';
import { createFinish } from './finish.ts';
import { policyBefore, type ReplacementVolume, replacementVolume, takenFrom } from './replacement-volume.ts';
import { createVolumePatches } from './volume-patches.ts';

export interface TakeOverOptions extends Pick<TakeOverRequest, 'store' | 'servers'> {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly deadlineMs?: number;
}

const defaultDeadlineMs = 60_000;
const [maxAttempts, pauseMs] = [10, 20];

/** The old volume, and the new one if it exists. */
type CandidateVolumes = readonly [PersistentVolume, PersistentVolume | undefined];

export function createTakeOver(parts: TakeOverOptions): TakeOverService {
  const { client, clock, signal, store, servers, deadlineMs = defaultDeadlineMs } = parts;
  const patches = createVolumePatches(client, signal);
  const { retainData, patchVolume } = patches;
  const { move } = createClaimMove({ client, clock, signal, patches, deadlineMs });
  const { finish } = createFinish({ client, signal, patches });
  let lastCluster: Cluster | undefined;

  const volume = (name: string): Promise<PersistentVolume | undefined> =>
    undefinedIfMissing(client.get(persistentVolumes, { name }, signal));

  async function getVolumes({ from, to }: TakeOverCandidate): Promise<CandidateVolumes> {
    const [before, after] = await Promise.all([volume(from), volume(to)]);
    if (before === undefined)
      throw notPossible(
        `the PersistentVolume ${from} was deleted`,
        'List the candidates again: kubectl stowage take-over',
      );
    if (before.metadata.deletionTimestamp !== undefined)
      throw notPossible(
        `the PersistentVolume ${from} is being deleted`,
        'Finish the take-over: kubectl stowage take-over --finish',
      );
    if (after !== undefined && after.metadata.annotations?.[takenFrom] !== from)
      throw notPossible(
        `the PersistentVolume ${to} does not belong to this take-over, or the take-over is finished`,
        '',
      );
    return [before, after];
  }

  /** Creates the new volume. Throws before the first change if the conditions are not met. */
  async function createReplacement(
    before: PersistentVolume,
    claim: PersistentVolumeClaim | undefined,
    { directory }: TakeOverCandidate,
    { id, identity }: Pick<ReplacementVolume, 'id' | 'identity'>,
  ): Promise<PersistentVolume> {
    if (id === '')
      throw notPossible(
        'the store has no volume for its directory',
        `Find the cause: kubectl stowage store adopt ${store} --dry-run`,
      );
    const isThere = claim?.spec.volumeName === before.metadata.name && claim?.metadata.deletionTimestamp === undefined;
    if (claim === undefined || !isThere)
      throw notPossible(
        'the claim was deleted, or is bound to another PersistentVolume',
        'List the candidates again: kubectl stowage take-over',
      );
    const holder = lastCluster && holderOf(lastCluster, [id, `${store}..${directory}`]);
    if (holder !== undefined) throw notPossible(`the PersistentVolume ${holder} already uses that directory`, '');
    const isReadOnly = directoryOf(before)?.isReadOnly === true;
    const kept = await retainData(before);
    const after = replacementVolume({ before: kept, claim, store, name: directory, id, identity, isReadOnly });
    return await client.create(persistentVolumes, after, signal);
  }

  async function continueTakeOver(before: PersistentVolume, after: PersistentVolume): Promise<PersistentVolume> {
    await retainData(before);
    return await retainData(after);
  }

  async function take(candidate: TakeOverCandidate, which: Pick<ReplacementVolume, 'id' | 'identity'>): Promise<void> {
    const [before, there] = await getVolumes(candidate);
    const claim = await checkedClaim(parts, before);
    const after =
      there === undefined
        ? await createReplacement(before, claim, candidate, which)
        : await continueTakeOver(before, there);
    await move({ claim, from: before, to: after, recordHolder: after });
  }

  async function undo(candidate: TakeOverCandidate): Promise<void> {
    const [before, after] = await getVolumes(candidate);
    if (after === undefined) throw notPossible('the claim was not taken over', '');
    const claim = await checkedClaim(parts, after);
    const [kept, memory] = [await retainData(before), await retainData(after)];
    await move({ claim, from: memory, to: kept, recordHolder: memory });
    const bound = await volume(candidate.from);
    if (bound === undefined) throw notPossible(`the PersistentVolume ${candidate.from} was deleted`, '');
    const policy = bound.metadata.annotations?.[policyBefore] ?? 'Retain';
    await patchVolume(bound, { persistentVolumeReclaimPolicy: policy }, { [policyBefore]: null });
    await undefinedIfMissing(
      client.delete(persistentVolumes, { name: candidate.to }, { uid: after.metadata.uid }, signal),
    );
  }

  const withRetries = <T>(work: () => Promise<T>): Promise<T> =>
    readableErrors(() => retryConflicts(clock, signal, work));

  return {
    findCandidates: (action) =>
      readableErrors(async () => {
        const storeExport = await exportOfStore(parts, action);
        lastCluster = await readCluster(client, signal);
        return findCandidates(
          lastCluster,
          store,
          storeExport,
          new Set([storeExport.server, ...servers.map(serverName)]),
        );
      }),
    take: (candidate, id, identity) => withRetries(() => take(candidate, { id, identity })),
    undo: (candidate) => withRetries(() => undo(candidate)),
    finish: (candidate, identity) => withRetries(() => finish(candidate, identity)),
    [Symbol.dispose]: () => client[Symbol.dispose](),
  };
}

/** The export of the store. Throws if the store cannot own taken-over volumes. */
async function exportOfStore(
  { client, signal, store }: Pick<TakeOverOptions, 'client' | 'signal' | 'store'>,
  action: TakeOverAction,
): Promise<Export> {
  const object: StoreObject | undefined = await undefinedIfMissing(client.get(storeObjects, { name: store }, signal));
  if (object === undefined)
    throw new StowageError(`store '${store}' not found in the cluster`, {
      code: 'not-found',
      reason: 'store-unknown',
      action: 'List the stores: kubectl get stores',
    });
  const storeExport = exportOf(object.spec.uri);
  // With a pathTemplate, the volume named after the directory can be in another directory.
  if (storeExport !== undefined && action === 'take' && optionOf(object, 'pathTemplate') !== undefined)
    throw new StowageError(
      `store '${store}' has the option pathTemplate, so its directories are not named after its volumes`,
      {
        code: 'unsupported',
        reason: 'take-over-not-possible',
        action: 'Use a Store of the same export without pathTemplate.',
      },
    );
  if (storeExport !== undefined) return storeExport;
  throw new StowageError(`store '${store}' is not on an NFS server`, {
    code: 'unsupported',
    reason: 'take-over-not-possible',
    action: 'Use a Store with an nfs:// URI for the export that contains the volumes.',
  });
}

/** Converts errors of Kubernetes to errors that say what the user can do. */
async function readableErrors<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (thrown) {
    throw thrown instanceof KubeError ? kubernetesError(thrown) : thrown;
  }
}

/** Retries from the current state if another client changed an object at the same time. */
async function retryConflicts<T>(clock: Clock, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  for (let times = 1; ; times++)
    try {
      return await work();
    } catch (thrown) {
      if (reasonOf(thrown) !== 'Conflict' || times === maxAttempts) throw thrown;
      await clock.sleep(times * pauseMs, signal);
    }
}

function kubernetesError(error: KubeError): StowageError {
  const { failure, status, serverMessage: said, message } = error;
  if (failure === 'canceled')
    return new StowageError('interrupted', { code: 'canceled', reason: 'interrupted', action: '', cause: error });
  if (reasonOf(error) === 'Conflict')
    return notPossible('other clients keep changing the same objects', 'Repeat the command; this is safe.');
  if (status === 401 || status === 403)
    return new StowageError(said || message, {
      code: 'denied',
      reason: 'kubernetes-denied',
      action: 'Use the kubeconfig of a cluster administrator: --kubeconfig FILE, --context NAME',
      cause: error,
    });
  return new StowageError(`the request to the API server failed: ${said || message}`, {
    code: failure === 'deadline' ? 'deadline' : 'unavailable',
    reason: 'kubernetes-unreachable',
    action: 'Check the connection: kubectl version. Then repeat the command; this is safe.',
    cause: error,
  });
}
