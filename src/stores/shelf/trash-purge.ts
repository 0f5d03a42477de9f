import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { TrashEntry, VolumeId } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import type { Trash } from '#core/ports.ts';
import type { Meta, MetaRead } from './meta.ts';
import { readMeta } from './meta.ts';
import type { ObservedTime } from './observed-time.ts';
import type { Parts } from './parts.ts';
import { finishRestore } from './settle.ts';
import { type Expiry, judge, type Observer, type Verdict } from './trash-expiry.ts';

const readsAtOnce = 16;
/** Records that change in one round of maintenance; the rest waits for the next one. */
const mostWrites = 100;
/** Records that do not change are read again after this time: another host may have restored and deleted the volume. */
const rereadAfterMs = 3_600_000;

/** What was read of an entry, and when. */
interface Remembered {
  readonly meta: Meta;
  readonly at: number;
}

export interface Purging extends Pick<Trash, 'purge' | 'expired' | 'purgeExpired'> {
  /** Of a volume that is deleted now. */
  newExpiry(retention: number): Promise<Expiry>;
}

export function createPurging(parts: Parts, observedTime: ObservedTime): Purging {
  const { place, during, clock } = parts;
  const { files, context, others } = place;
  const remembered = new Map<VolumeId, Remembered>();
  const reported = new Set<VolumeId>();
  const recordOf = (id: VolumeId): string => place.own('trash', id, 'meta');
  const read = (id: VolumeId): Promise<MetaRead> => readMeta(files, recordOf(id), context.instance);

  const serverTime = async (): Promise<number | undefined> =>
    place.serverTime === undefined ? clock.now() : await place.serverTime();
  const about = (observed: number, serverNow: number): Observer => ({
    ...{ instance: context.instance, isShared: others !== undefined, observed, serverNow: Math.round(serverNow) },
  });

  async function observe(): Promise<Observer | undefined> {
    const [serverNow, observed] = await Promise.all([serverTime(), observedTime.now()]);
    return serverNow === undefined ? undefined : about(observed, serverNow);
  }

  function remember(id: VolumeId, found: MetaRead): Meta | undefined {
    if (found.state === 'ok') remembered.set(id, { meta: found.meta, at: clock.elapsed() });
    else remembered.delete(id);
    return found.state === 'ok' ? found.meta : undefined;
  }

  const looking = <T>(scope: Scope, work: () => Promise<T>): Promise<T> =>
    during('looking for expired entries of the trash', [], scope, work);

  /** Undefined: the entry is on its way in or out, or cannot be read. */
  async function look(id: VolumeId, scope: Scope): Promise<Meta | undefined> {
    const known = remembered.get(id);
    if (known !== undefined && clock.elapsed() - known.at < rereadAfterMs) return known.meta;
    const found = await looking(scope, () => read(id));
    const isUnreadable = found.state === 'unreadable' || (found.state === 'ok' && found.meta.expiry === 'unreadable');
    if (isUnreadable && !reported.has(id)) {
      const why = found.state === 'unreadable' ? found.error.message : 'its expiry is not in a known form';
      scope.log.warn('a trash entry cannot be read, so it never expires', { store: place.store, volume: id, why });
      reported.add(id);
    }
    return remember(id, found);
  }

  /** Undefined: it never expires. */
  const expiryOf = ({ expiry, instance }: Meta, retention: number): Expiry | undefined =>
    expiry === 'unreadable' ? undefined : (expiry ?? { retention, owner: instance });

  /** Writes into the entry what it must say before it can expire; with the volume held, by what the entry says then. */
  async function record(id: VolumeId, retention: number, scope: Scope): Promise<void> {
    // Busy, or left by a host that died: there is time.
    if (await looking(scope, async () => others?.isHeld(id))) return;
    const work = during(`recording when ${id} expires`, [id], scope, async () => {
      const limit = parts.limit();
      const meta = remember(id, await read(id));
      const expiry = meta && expiryOf(meta, retention);
      const observer = expiry && (await observe());
      if (meta === undefined || expiry === undefined || observer === undefined) return;
      const decided = judge(expiry, observer);
      if (decided.verdict !== 'record') return;
      await place.replace(recordOf(id), { ...meta, expiry: decided.expiry }, limit.check);
      remember(id, { state: 'ok', meta: { ...meta, expiry: decided.expiry } });
    });
    await work.catch((cause: unknown) => {
      scope.signal.throwIfAborted();
      if (!(cause instanceof StowageError) || cause.code === 'unavailable') throw cause;
      // The entry does not expire before this is written; the next round tries again. Others must not wait for it.
      if (['busy', 'exhausted'].includes(cause.code)) return;
      scope.log.warn('a trash entry cannot be given its date', { store: place.store, volume: id, why: cause.message });
    });
  }

  async function moveToDeleting(id: VolumeId): Promise<void> {
    // One step, whatever its size; `reclaim` frees the room.
    const isThere = await files.rename(place.own('trash', id), place.own('deleting', `${id}.trash`));
    await files.sync(place.own('trash'));
    others?.forget(id, isThere ? 'gone' : 'not found');
    remembered.delete(id);
  }

  /** With the volume held. A restore that was interrupted after it moved the data out is finished: nothing is left to purge. */
  async function purgeHeld(
    id: VolumeId,
    scope: Scope,
    isWanted: (meta: MetaRead) => Promise<boolean>,
  ): Promise<boolean> {
    const limit = parts.limit();
    const found = await read(id);
    if (found.state === 'ok' && (await finishRestore(parts, found.meta, scope)) !== undefined) return false;
    if (!(await isWanted(found))) return false;
    limit.check();
    await moveToDeleting(id);
    return true;
  }

  const purging = <T>(id: VolumeId, scope: Scope, work: () => Promise<T>): Promise<T> =>
    during(`purging ${id} from the trash`, [id], scope, () => place.reserve.backing(work));

  async function isExpired(id: VolumeId, found: MetaRead): Promise<boolean> {
    const expiry = remember(id, found)?.expiry;
    const observer = await observe();
    if (expiry === undefined || expiry === 'unreadable' || observer === undefined) return false;
    return judge(expiry, observer).verdict === 'purge';
  }

  async function expired(retention: number, scope: Scope): Promise<readonly TrashEntry[]> {
    const ids = (await looking(scope, () => files.names(place.own('trash')))).filter(isVolumeId);
    const present = new Set(ids);
    for (const id of remembered.keys()) if (!present.has(id)) remembered.delete(id);
    if (ids.length === 0) return [];
    const observed = await looking(scope, observedTime.save);
    let asked: Promise<number | undefined> | undefined;
    const decide = async (expiry: Expiry): Promise<Verdict['verdict']> => {
      // Most entries wait for their owner's own time: the server is asked only where its time can matter.
      if (judge(expiry, about(observed, Number.MAX_SAFE_INTEGER)).verdict === 'keep') return 'keep';
      asked ??= looking(scope, serverTime);
      const serverNow = await asked;
      return serverNow === undefined ? 'keep' : judge(expiry, about(observed, serverNow)).verdict;
    };
    const due: TrashEntry[] = [];
    const unrecorded: VolumeId[] = [];
    await eachBounded(ids, readsAtOnce, async (id) => {
      scope.signal.throwIfAborted();
      const meta = await look(id, scope);
      const expiry = meta && expiryOf(meta, retention);
      if (expiry === undefined || meta === undefined) return;
      const verdict = await decide(expiry);
      if (verdict === 'purge') due.push(entryOf(parts, meta));
      if (verdict === 'record') unrecorded.push(id);
    });
    for (const id of unrecorded.slice(0, mostWrites)) await record(id, retention, scope);
    return due;
  }

  return {
    newExpiry: async (retention) => {
      const [serverNow, at] = await Promise.all([serverTime(), observedTime.now()]);
      return {
        ...(serverNow === undefined ? {} : { expiresAt: Math.round(serverNow) + retention }),
        ...{ retention, owner: context.instance, seen: { by: context.instance, at } },
      };
    },
    purge: async (id, scope, only) => {
      const isThatOne = async (found: MetaRead): Promise<boolean> =>
        only === undefined || found.state !== 'ok' || (found.meta.deletedAt ?? 0) === only.deletedAt;
      await purging(id, scope, () => purgeHeld(id, scope, isThatOne));
    },
    purgeExpired: (id, scope) => purging(id, scope, () => purgeHeld(id, scope, (found) => isExpired(id, found))),
    expired,
  };
}

export function entryOf({ volume }: Pick<Parts, 'volume'>, meta: Meta): TrashEntry {
  const { deletedAt = 0, expiry } = meta;
  return {
    ...{ volume: volume(meta), deletedAt },
    expiresAt: expiry === undefined || expiry === 'unreadable' ? undefined : expiry.expiresAt,
  };
}
