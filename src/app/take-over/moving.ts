import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { isTransient, KubeError, reasonOf } from '#wire/kube/errors.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { heldBy, usedBy, usersOf } from './looking.ts';
import { capacityFor, claimAsWas, claimIn, claimWithout, policyBefore, prebound, withClaim } from './objects.ts';

export interface MovingParts {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** How long Kubernetes gets to let a claim go, or to give it its volume. */
  readonly patienceMs: number;
}

export interface Move {
  /** As it was checked just now. */
  readonly claim: PersistentVolumeClaim | undefined;
  /** Where the claim is, and where it is to be. Both outlive it. */
  readonly from: PersistentVolume;
  readonly to: PersistentVolume;
  /** The one of the two that remembers the claim. */
  readonly memory: PersistentVolume;
}

export type Moving = ReturnType<typeof createMoving>;

const [firstPollMs, longestPollMs] = [25, 500];

export const left = (message: string, action: string): StowageError =>
  new StowageError(message, { code: 'conflict', reason: 'take-over-not-possible', action });
const repeat = 'Repeat the command; repeating is safe.';
const kept = ({ metadata: { name = '' } }: PersistentVolume): string =>
  `What it was is kept in the annotation ${claimAsWas} of the PersistentVolume ${name}. ${repeat}`;

/** A new claim may be let in later, without anybody changing this command: room in a quota comes and goes. */
const mayBeMade = (error: KubeError): boolean =>
  isTransient(error) ||
  error.reason === 'Conflict' ||
  (error.status === 403 && /exceeded quota|status unknown for quota/.test(error.serverMessage));

export const absent = async <T>(asked: Promise<T>): Promise<T | undefined> => {
  try {
    return await asked;
  } catch (thrown) {
    if (reasonOf(thrown) === 'NotFound') return undefined;
    throw thrown;
  }
};

/**
 * A claim cannot be given another volume, so it is made anew. What it was is written down before it goes; the volume that it shall have
 * waits for a claim of that name, so that it gets it too when somebody else is faster to make it, such as the controller of a StatefulSet.
 */
export function createMoving({ client, clock, signal, patienceMs }: MovingParts) {
  const claimFor = ({ spec: { claimRef } }: PersistentVolume): Promise<PersistentVolumeClaim | undefined> => {
    const { namespace = '', name = '' } = claimRef ?? {};
    return absent(client.get(claims, { namespace, name }, signal));
  };

  /** Only the one that was read: what somebody else has changed meanwhile is looked at first. */
  function change(volume: PersistentVolume, spec: object, annotations: object = {}): Promise<PersistentVolume> {
    const { name = '', uid = '', resourceVersion = '' } = volume.metadata;
    const body = { metadata: { uid, resourceVersion, annotations }, spec };
    return client.patch(persistentVolumes, { name }, { kind: 'merge', body }, signal);
  }

  /** From here on nothing that happens to the object touches the data. What was to happen to them is remembered. */
  async function keepData(volume: PersistentVolume): Promise<PersistentVolume> {
    const { persistentVolumeReclaimPolicy: policy = 'Retain' } = volume.spec;
    if (policy === 'Retain' && volume.metadata.annotations?.[policyBefore] !== undefined) return volume;
    return await change(volume, { persistentVolumeReclaimPolicy: 'Retain' }, { [policyBefore]: policy });
  }

  /** What Kubernetes does not answer is asked again. `late`: with why there was no answer at last, or nothing. */
  async function poll(look: () => Promise<boolean>, late: (why: string) => Promise<StowageError>): Promise<void> {
    const until = clock.elapsed() + patienceMs;
    for (let pause = firstPollMs; ; pause = Math.min(pause * 2, longestPollMs)) {
      let why = '';
      try {
        if (await look()) return;
      } catch (thrown) {
        if (!(thrown instanceof KubeError) || thrown.failure === 'canceled' || !isTransient(thrown)) throw thrown;
        why = thrown.serverMessage || thrown.message;
      }
      if (clock.elapsed() >= until) throw await late(why);
      await clock.sleep(pause, signal);
    }
  }

  /** The claim of a volume. Kubernetes keeps one that a pod begins to use after this, until the pod ends. */
  async function checked(from: PersistentVolume): Promise<PersistentVolumeClaim | undefined> {
    const claim = await claimFor(from);
    if (claim === undefined || claim.spec.volumeName !== from.metadata.name) return claim;
    if (claim.metadata.deletionTimestamp !== undefined) return claim;
    const users = await usersOf(client, claim, signal);
    if (users.length > 0) throw left(usedBy(users), '');
    if (heldBy(claim) !== '') throw left(heldBy(claim), 'Whoever put that there has to let go first.');
    return claim;
  }

  async function remove(claim: PersistentVolumeClaim, { from, memory }: Pick<Move, 'from' | 'memory'>): Promise<void> {
    const { namespace = '', name = '', uid = '', resourceVersion, deletionTimestamp } = claim.metadata;
    if (deletionTimestamp === undefined) {
      // As it is now: it may have grown since.
      const known = claimIn(memory);
      if (JSON.stringify(known) !== JSON.stringify(claimWithout(claim))) await change(memory, {}, withClaim(claim));
    }
    await poll(
      async () => {
        const there = await claimFor(from);
        if (there?.metadata.uid !== uid) return true;
        // Only as it was checked, and written down.
        if (there.metadata.deletionTimestamp === undefined)
          await absent(client.delete(claims, { namespace, name }, { uid, resourceVersion }, signal));
        return false;
      },
      async (why) => {
        if (why !== '') return left(`the claim is being deleted, and may be gone: ${why}`, kept(memory));
        const users = await usersOf(client, claim, signal);
        const reason = users.length > 0 ? `pod ${users.join(', ')} uses it` : 'Kubernetes has not let it go yet';
        return left(`the claim is being deleted, and is still there: ${reason}`, repeat);
      },
    );
  }

  async function make(claim: PersistentVolumeClaim, volumeName: string, memory: PersistentVolume): Promise<void> {
    let why = '';
    const gone = async (): Promise<StowageError> =>
      left(`the claim is gone, and could not be made again yet: ${why}`, kept(memory));
    await poll(async () => {
      try {
        await client.create(claims, { ...claim, spec: { ...claim.spec, volumeName } }, signal);
        return true;
      } catch (thrown) {
        if (reasonOf(thrown) === 'AlreadyExists') return true;
        if (!(thrown instanceof KubeError) || thrown.failure === 'canceled') throw thrown;
        why = thrown.serverMessage || thrown.message;
        if (!mayBeMade(thrown)) throw await gone();
        return false;
      }
    }, gone);
  }

  async function awaitBound(to: PersistentVolume): Promise<void> {
    const name = to.metadata.name ?? '';
    await poll(
      async () => {
        const { spec, status } = (await claimFor(to)) ?? {};
        if (spec?.volumeName !== undefined && spec.volumeName !== name)
          throw left(
            `somebody made the claim anew, and it has another volume, ${spec.volumeName}`,
            'Delete that claim if nothing of it is needed, and repeat the command.',
          );
        return status?.phase === 'Bound' && spec?.volumeName === name;
      },
      async (why) =>
        left(
          `the claim waits for its volume ${name}${why === '' ? '' : `: ${why}`}`,
          `See: kubectl describe pvc and kubectl describe pv ${name}. ${repeat}`,
        ),
    );
  }

  /** For a claim of that name. */
  async function wait(to: PersistentVolume, claim: PersistentVolumeClaim): Promise<PersistentVolume> {
    const storage = capacityFor(to, claim);
    if (to.spec.claimRef?.uid === undefined && to.spec.capacity?.['storage'] === storage) return to;
    const claimRef = { ...prebound(claim), uid: null, resourceVersion: null };
    return await change(to, { capacity: { storage }, claimRef });
  }

  async function move({ claim, from, to, memory }: Move): Promise<void> {
    const [before, after] = [from.metadata.name ?? '', to.metadata.name ?? ''];
    if (claim?.spec.volumeName === after) return await awaitBound(to);
    const known = claim?.spec.volumeName === before ? claim : claimIn(memory);
    if (known === undefined)
      throw left('it is not known what the claim was', 'Write it again, with its name and class.');
    const waiting = await wait(to, known);
    const remembers = memory.metadata.name === after ? waiting : memory;
    if (claim?.spec.volumeName === before) await remove(claim, { from, memory: remembers });
    await make(claimWithout(known), after, memory);
    await awaitBound(waiting);
  }

  return { checked, move, keepData, change };
}
