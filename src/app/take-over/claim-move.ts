import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { isTransient, KubeError, reasonOf } from '#wire/kube/errors.ts';
import { claims } from '#wire/kube/resources.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { otherFinalizersText, usedByText, usersOf } from './candidates.ts';
import { claimAsWas, claimRecord, claimTemplate, recordedClaim } from './replacement-volume.ts';
import type { VolumePatches } from './volume-patches.ts';

export interface ClaimMoveOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly patches: VolumePatches;
  /** The time that Kubernetes gets to delete or bind a claim. */
  readonly deadlineMs: number;
}

export interface Move {
  /** The claim as just checked. */
  readonly claim: PersistentVolumeClaim | undefined;
  /** The claim's current volume and its new one. Both outlive the claim. */
  readonly from: PersistentVolume;
  readonly to: PersistentVolume;
  /** The one of the two whose annotation records the claim. */
  readonly recordHolder: PersistentVolume;
}

const [firstPollMs, longestPollMs] = [25, 500];

export const notPossible = (message: string, action: string): StowageError =>
  new StowageError(message, { code: 'conflict', reason: 'take-over-not-possible', action });
const repeatHint = 'Repeat the command; this is safe.';
const savedClaimHint = ({ metadata: { name = '' } }: PersistentVolume): string =>
  `The claim is saved in the annotation ${claimAsWas} of the PersistentVolume ${name}. ${repeatHint}`;

/** Whether creating the claim may succeed later without a change of the command: for example, a quota can be exceeded temporarily. */
const mayBeCreatedLater = (error: KubeError): boolean =>
  isTransient(error) ||
  error.reason === 'Conflict' ||
  (error.status === 403 && /exceeded quota|status unknown for quota/.test(error.serverMessage));

export const undefinedIfMissing = async <T>(asked: Promise<T>): Promise<T | undefined> => {
  try {
    return await asked;
  } catch (thrown) {
    if (reasonOf(thrown) === 'NotFound') return undefined;
    throw thrown;
  }
};

type ClusterAccess = Pick<ClaimMoveOptions, 'client' | 'signal'>;

function claimOf(
  { client, signal }: ClusterAccess,
  { spec: { claimRef } }: PersistentVolume,
): Promise<PersistentVolumeClaim | undefined> {
  const { namespace = '', name = '' } = claimRef ?? {};
  return undefinedIfMissing(client.get(claims, { namespace, name }, signal));
}

/**
 * The claim of a volume. Throws if a pod uses it, or if its deletion would wait. If a pod starts to use it later, Kubernetes keeps it until
 * the pod ends.
 */
export async function checkedClaim(
  access: ClusterAccess,
  from: PersistentVolume,
): Promise<PersistentVolumeClaim | undefined> {
  const claim = await claimOf(access, from);
  if (claim === undefined || claim.spec.volumeName !== from.metadata.name) return claim;
  if (claim.metadata.deletionTimestamp !== undefined) return claim;
  const users = await usersOf(access.client, claim, access.signal);
  if (users.length > 0) throw notPossible(usedByText(users), '');
  if (otherFinalizersText(claim) !== '')
    throw notPossible(otherFinalizersText(claim), 'The owners of these finalizers must remove them first.');
  return claim;
}

/**
 * A claim cannot be bound to another volume, so it is deleted and created again. Its content is recorded first. The new volume is reserved
 * for a claim of that name, so it is also used if another client, such as the StatefulSet controller, is faster to create the claim.
 */
export function createClaimMove(options: ClaimMoveOptions) {
  const { client, signal } = options;
  const { patchVolume, reserve } = options.patches;

  async function deleteClaim(
    claim: PersistentVolumeClaim,
    { from, recordHolder }: Pick<Move, 'from' | 'recordHolder'>,
  ): Promise<void> {
    const { namespace = '', name = '', uid = '', resourceVersion, deletionTimestamp } = claim.metadata;
    if (deletionTimestamp === undefined) {
      // Record its current state: it may have grown since.
      const known = recordedClaim(recordHolder);
      if (JSON.stringify(known) !== JSON.stringify(claimTemplate(claim)))
        await patchVolume(recordHolder, {}, claimRecord(claim));
    }
    await poll(
      options,
      async () => {
        const there = await claimOf(options, from);
        if (there?.metadata.uid !== uid) return true;
        // Delete only the version that was checked and recorded.
        if (there.metadata.deletionTimestamp === undefined)
          await undefinedIfMissing(client.delete(claims, { namespace, name }, { uid, resourceVersion }, signal));
        return false;
      },
      async (why) => {
        if (why !== '')
          return notPossible(
            `the claim is being deleted, and may already be gone: ${why}`,
            savedClaimHint(recordHolder),
          );
        const users = await usersOf(client, claim, signal);
        const reason =
          users.length > 0 ? `pod ${users.join(', ')} uses the claim` : 'Kubernetes has not removed its finalizers yet';
        return notPossible(`the claim is being deleted, but still exists: ${reason}`, repeatHint);
      },
    );
  }

  async function createClaim(
    claim: PersistentVolumeClaim,
    volumeName: string,
    recordHolder: PersistentVolume,
  ): Promise<void> {
    let why = '';
    const claimNotRecreated = async (): Promise<StowageError> =>
      notPossible(`the claim was deleted, and could not be recreated yet: ${why}`, savedClaimHint(recordHolder));
    await poll(
      options,
      async () => {
        try {
          await client.create(claims, { ...claim, spec: { ...claim.spec, volumeName } }, signal);
          return true;
        } catch (thrown) {
          if (reasonOf(thrown) === 'AlreadyExists') return true;
          if (!(thrown instanceof KubeError) || thrown.failure === 'canceled') throw thrown;
          why = thrown.serverMessage || thrown.message;
          if (!mayBeCreatedLater(thrown)) throw await claimNotRecreated();
          return false;
        }
      },
      claimNotRecreated,
    );
  }

  async function awaitBound(to: PersistentVolume): Promise<void> {
    const name = to.metadata.name ?? '';
    await poll(
      options,
      async () => {
        const { spec, status } = (await claimOf(options, to)) ?? {};
        if (spec?.volumeName !== undefined && spec.volumeName !== name)
          throw notPossible(
            `another client recreated the claim, which is bound to another PersistentVolume, ${spec.volumeName}`,
            'If that claim is not needed, delete it and repeat the command.',
          );
        return status?.phase === 'Bound' && spec?.volumeName === name;
      },
      async (why) =>
        notPossible(
          `the claim is not bound to its volume ${name}${why === '' ? '' : `: ${why}`}`,
          `Check: kubectl describe pvc; kubectl describe pv ${name}. ${repeatHint}`,
        ),
    );
  }

  async function move({ claim, from, to, recordHolder }: Move): Promise<void> {
    const [before, after] = [from.metadata.name ?? '', to.metadata.name ?? ''];
    if (claim?.spec.volumeName === after) return await awaitBound(to);
    const known = claim?.spec.volumeName === before ? claim : recordedClaim(recordHolder);
    if (known === undefined)
      throw notPossible(
        'no record of the deleted claim found',
        'Create the claim manually, with the same name and class.',
      );
    const waiting = await reserve(to, known);
    const remembers = recordHolder.metadata.name === after ? waiting : recordHolder;
    if (claim?.spec.volumeName === before) await deleteClaim(claim, { from, recordHolder: remembers });
    await createClaim(claimTemplate(known), after, recordHolder);
    await awaitBound(waiting);
  }

  return { move };
}

/** Retries while Kubernetes does not answer. `late`: creates the error at the deadline, from the last failure or ''. */
async function poll(
  { clock, signal, deadlineMs }: Pick<ClaimMoveOptions, 'clock' | 'signal' | 'deadlineMs'>,
  isDone: () => Promise<boolean>,
  timeoutError: (why: string) => Promise<StowageError>,
): Promise<void> {
  const until = clock.elapsed() + deadlineMs;
  for (let pause = firstPollMs; ; pause = Math.min(pause * 2, longestPollMs)) {
    let why = '';
    try {
      if (await isDone()) return;
    } catch (thrown) {
      if (!(thrown instanceof KubeError) || thrown.failure === 'canceled' || !isTransient(thrown)) throw thrown;
      why = thrown.serverMessage || thrown.message;
    }
    if (clock.elapsed() >= until) throw await timeoutError(why);
    await clock.sleep(pause, signal);
  }
}
