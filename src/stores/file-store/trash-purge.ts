import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { TrashEntry, VolumeId } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import type { Trash } from '#core/ports.ts';
import { finishRestore } from './finish-interrupted.ts';
import type { Meta, MetaRead } from './meta.ts';
import { readMeta } from './meta.ts';
import type { ObservedTime } from './observed-time.ts';
import type { HostLocks } from './store-root.ts';
import { type Expiry, judge, type Observer, type Verdict } from './trash-expiry.ts';
import { finishStaged, moveToDeleting, putBack } from './trash-staging.ts';
import type { HeldScope, VerbContext } from './verb-context.ts';

const maxConcurrentReads = 16;
/** The most records that one round of maintenance changes; the rest waits for the next round. */
const maxWritesPerRound = 100;
/** Records that do not change are read again after this time: another host may have restored and deleted the volume. */
const rereadAfterMs = 3_600_000;

/** A record of an entry, and when it was read. */
interface Remembered {
  readonly meta: Meta;
  readonly at: number;
}

export interface TrashPurge extends Pick<Trash, 'purge' | 'expired' | 'purgeExpired'> {
  /** The expiry of a volume that is being deleted now. */
  newExpiry(retention: number): Promise<Expiry>;
}

export function createTrashPurge(ctx: VerbContext, observedTime: ObservedTime): TrashPurge {
  const { storeRoot, runVerb, clock } = ctx;
  const { files, context, hostLocks } = storeRoot;
  const remembered = new Map<VolumeId, Remembered>();
  const reported = new Set<VolumeId>();
  const recordOf = (id: VolumeId): string => storeRoot.ownPath('trash', id, 'meta');
  const read = (id: VolumeId): Promise<MetaRead> => readMeta(files, recordOf(id), context.instance);

  const serverTime = async (): Promise<number | undefined> =>
    storeRoot.serverTime === undefined ? clock.now() : await storeRoot.serverTime();
  const observerAt = (observed: number, serverNow: number): Observer => ({
    instance: context.instance,
    isShared: hostLocks !== undefined,
    observed,
    serverNow: Math.round(serverNow),
  });

  async function observe(): Promise<Observer | undefined> {
    const [serverNow, observed] = await Promise.all([serverTime(), observedTime.now()]);
    return serverNow === undefined ? undefined : observerAt(observed, serverNow);
  }

  function remember(id: VolumeId, found: MetaRead): Meta | undefined {
    if (found.state === 'ok') remembered.set(id, { meta: found.meta, at: clock.elapsed() });
    else remembered.delete(id);
    return found.state === 'ok' ? found.meta : undefined;
  }

  const looking = <T>(scope: Scope, work: () => Promise<T>): Promise<T> =>
    runVerb('looking for expired entries of the trash', [], scope, work);

  /** Undefined: the entry is being moved into or out of the trash, or is unreadable. */
  async function look(id: VolumeId, scope: Scope): Promise<Meta | undefined> {
    const known = remembered.get(id);
    if (known !== undefined && clock.elapsed() - known.at < rereadAfterMs) return known.meta;
    const found = await looking(scope, () => read(id));
    const isUnreadable = found.state === 'unreadable' || (found.state === 'ok' && found.meta.expiry === 'unreadable');
    if (isUnreadable && !reported.has(id)) {
      const why = found.state === 'unreadable' ? found.error.message : 'its expiry is not in a known form';
      scope.log.warn('a trash entry cannot be read, so it never expires', { store: storeRoot.store, volume: id, why });
      reported.add(id);
    }
    return remember(id, found);
  }

  /** Undefined: it never expires. */
  const expiryOf = ({ expiry, instance }: Meta, retention: number): Expiry | undefined =>
    expiry === 'unreadable' ? undefined : (expiry ?? { retention, owner: instance });

  /** Writes the dates that an entry needs before it can expire. Decides again under the volume's lock, from the current record. */
  async function record(id: VolumeId, retention: number, scope: Scope): Promise<void> {
    const work = runVerb(`recording when ${id} expires`, [id], scope, async ({ limit }) => {
      const meta = remember(id, await read(id));
      const expiry = meta && expiryOf(meta, retention);
      const observer = expiry && (await observe());
      if (meta === undefined || expiry === undefined || observer === undefined) return;
      const decided = judge(expiry, observer);
      if (decided.verdict !== 'record') return;
      await storeRoot.replaceRecord(recordOf(id), { ...meta, expiry: decided.expiry }, limit.check);
      remember(id, { state: 'ok', meta: { ...meta, expiry: decided.expiry } });
    });
    await work.catch((cause: unknown) => {
      scope.signal.throwIfAborted();
      if (!(cause instanceof StowageError) || cause.code === 'unavailable') throw cause;
      // The entry does not expire before this is written; the next round tries again. Others must not wait for it.
      if (['busy', 'exhausted'].includes(cause.code)) return;
      scope.log.warn('the expiry of a trash entry cannot be recorded', {
        store: storeRoot.store,
        volume: id,
        why: cause.message,
      });
    });
  }

  /**
   * Call it with the volume locked. Finishes a restore that was interrupted after it moved the data out: then nothing is left to purge. If
   * there is no record, the entry was purged before, or a deletion was interrupted before it moved the record.
   */
  async function purgeHeld(
    id: VolumeId,
    scope: HeldScope,
    isWanted: (meta: Meta) => Promise<boolean>,
  ): Promise<boolean> {
    let found = await read(id);
    if (found.state === 'absent' && (await putBack(ctx, id, scope))) found = await read(id);
    const meta = remember(id, found);
    if (found.state === 'absent') hostLocks?.forget(id, 'not found');
    else if (found.state !== 'ok') throw found.error;
    if (meta === undefined || (await finishRestore(ctx, meta, scope)) !== undefined) return false;
    if (!(await isWanted(meta)) || !(await moveToDeleting(ctx, meta, scope))) return false;
    hostLocks?.forget(id, 'gone');
    remembered.delete(id);
    return true;
  }

  const purging = <T>(id: VolumeId, scope: Scope, work: (held: HeldScope) => Promise<T>): Promise<T> =>
    runVerb(`purging ${id} from the trash`, [id], scope, (held) =>
      storeRoot.reserve.retryWithReserve(() => work(held)),
    );

  async function isExpired({ expiry }: Meta): Promise<boolean> {
    const observer = await observe();
    if (expiry === undefined || expiry === 'unreadable' || observer === undefined) return false;
    return judge(expiry, observer).verdict === 'purge';
  }

  const holderOf = (id: VolumeId, scope: Scope): ReturnType<HostLocks['holderOf']> =>
    looking(scope, async () => (await hostLocks?.holderOf(id)) ?? 'nobody');

  async function recordAll(ids: readonly VolumeId[], retention: number, scope: Scope): Promise<void> {
    const stale: VolumeId[] = [];
    for (const id of ids) {
      const holder = await holderOf(id, scope);
      if (holder === 'nobody') await record(id, retention, scope);
      if (holder === 'stale') stale.push(id);
    }
    // Taking over the lock of a dead host takes some seconds, in which the lock is watched. So take all of them over at the same time.
    await eachBounded(stale, maxConcurrentReads, (id) => record(id, retention, scope));
  }

  async function expired(retention: number, scope: Scope): Promise<readonly TrashEntry[]> {
    const names = await looking(scope, () => files.names(storeRoot.ownPath('trash')));
    await finishStaged(ctx, names, scope);
    const ids = names.filter(isVolumeId);
    const present = new Set(ids);
    for (const id of remembered.keys()) if (!present.has(id)) remembered.delete(id);
    if (ids.length === 0) return [];
    const observed = await looking(scope, observedTime.save);
    let asked: Promise<number | undefined> | undefined;
    const decide = async (expiry: Expiry): Promise<Verdict['verdict']> => {
      // Most entries only wait for the observed time of their owner. Ask the server only if its time can matter.
      if (judge(expiry, observerAt(observed, Number.MAX_SAFE_INTEGER)).verdict === 'keep') return 'keep';
      asked ??= looking(scope, serverTime);
      const serverNow = await asked;
      return serverNow === undefined ? 'keep' : judge(expiry, observerAt(observed, serverNow)).verdict;
    };
    const due: TrashEntry[] = [];
    const unrecorded: VolumeId[] = [];
    await eachBounded(ids, maxConcurrentReads, async (id) => {
      scope.signal.throwIfAborted();
      const meta = await look(id, scope);
      const expiry = meta && expiryOf(meta, retention);
      if (expiry === undefined || meta === undefined) return;
      const verdict = await decide(expiry);
      // 'another': another host works on the entry, or died a moment ago. A later round purges it.
      if (verdict === 'purge' && (await holderOf(id, scope)) !== 'another') due.push(entryOf(ctx, meta));
      if (verdict === 'record') unrecorded.push(id);
    });
    await recordAll(unrecorded.slice(0, maxWritesPerRound), retention, scope);
    return due;
  }

  return {
    newExpiry: async (retention) => {
      const [serverNow, at] = await Promise.all([serverTime(), observedTime.now()]);
      return {
        ...(serverNow === undefined ? {} : { expiresAt: Math.round(serverNow) + retention }),
        retention,
        owner: context.instance,
        seen: { by: context.instance, at },
      };
    },
    purge: async (id, scope, only) => {
      const isThatOne = async ({ deletedAt = 0 }: Meta): Promise<boolean> =>
        only === undefined || deletedAt === only.deletedAt;
      await purging(id, scope, (held) => purgeHeld(id, held, isThatOne));
    },
    purgeExpired: (id, scope) => purging(id, scope, (held) => purgeHeld(id, held, isExpired)),
    expired,
  };
}

export function entryOf({ volume }: Pick<VerbContext, 'volume'>, meta: Meta): TrashEntry {
  const { deletedAt = 0, expiry } = meta;
  return {
    volume: volume(meta),
    deletedAt,
    expiresAt: expiry === undefined || expiry === 'unreadable' ? undefined : expiry.expiresAt,
  };
}
