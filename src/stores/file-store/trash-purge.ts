import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreName, TrashEntry, VolumeId } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import type { Trash } from '#core/ports.ts';
import { finishRestore } from './finish-interrupted.ts';
import type { HeldScope } from './held-scope.ts';
import type { Meta } from './meta.ts';
import type { ObservedTime } from './observed-time.ts';
import type { HostLocks } from './store-root.ts';
import { decideExpiry, type Expiry, type Verdict } from './trash-expiry.ts';
import { createTrashObserver } from './trash-observer.ts';
import { createTrashRecords, runTrashScan } from './trash-records.ts';
import { finishStaged, moveToDeleting, restoreFromStaging } from './trash-staging.ts';
import type { VerbContext } from './verb-context.ts';

const maxConcurrentReads = 16;
/** The most records that one round of maintenance changes; the rest waits for the next round. */
const maxWritesPerRound = 100;

export interface TrashPurge extends Pick<Trash, 'purge' | 'listExpired' | 'purgeExpired'> {
  /** The expiry of a volume that is being deleted now. */
  newExpiry(retention: number): Promise<Expiry>;
}

/** Undefined: it never expires. */
const expiryOf = ({ expiry, instance }: Meta, retention: number): Expiry | undefined =>
  expiry === 'unreadable' ? undefined : (expiry ?? { retention, owner: instance });

/** The entry does not expire before its dates are recorded; the next round tries again. Others must not wait for it. */
function logUnrecorded(cause: unknown, store: StoreName, volume: VolumeId, { signal, log }: Scope): void {
  signal.throwIfAborted();
  if (!(cause instanceof StowageError) || cause.code === 'unavailable') throw cause;
  if (['busy', 'exhausted'].includes(cause.code)) return;
  log.warn('the expiry of a trash entry cannot be recorded', { store, volume, why: cause.message });
}

export function createTrashPurge(ctx: VerbContext, observedTime: ObservedTime): TrashPurge {
  const { storeRoot, runVerb } = ctx;
  const { files, hostLocks } = storeRoot;
  const records = createTrashRecords(ctx);
  const trashObserver = createTrashObserver(ctx, observedTime);

  /** Writes the dates that an entry needs before it can expire. Decides again under the volume's lock, from the current record. */
  async function record(id: VolumeId, retention: number, scope: Scope): Promise<void> {
    const work = runVerb(`recording when ${id} expires`, [id], scope, async ({ limit }) => {
      const meta = records.remember(id, await records.read(id));
      const expiry = meta && expiryOf(meta, retention);
      const observer = expiry && (await trashObserver.current());
      if (meta === undefined || expiry === undefined || observer === undefined) return;
      const decision = decideExpiry(expiry, observer);
      if (decision.verdict !== 'record') return;
      await storeRoot.replaceRecord(records.path(id), { ...meta, expiry: decision.expiry }, limit.check);
      records.remember(id, { state: 'ok', meta: { ...meta, expiry: decision.expiry } });
    });
    await work.catch((cause: unknown) => logUnrecorded(cause, storeRoot.store, id, scope));
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
    let found = await records.read(id);
    if (found.state === 'absent' && (await restoreFromStaging(ctx, id, scope))) found = await records.read(id);
    const meta = records.remember(id, found);
    if (found.state === 'absent') hostLocks?.forget(id, 'not found');
    else if (found.state !== 'ok') throw found.error;
    if (meta === undefined || (await finishRestore(ctx, meta, scope)) !== undefined) return false;
    if (!(await isWanted(meta)) || !(await moveToDeleting(ctx, meta, scope))) return false;
    hostLocks?.forget(id, 'gone');
    records.forget(id);
    return true;
  }

  const runPurge = <T>(id: VolumeId, scope: Scope, work: (held: HeldScope) => Promise<T>): Promise<T> =>
    runVerb(`purging ${id} from the trash`, [id], scope, (held) =>
      storeRoot.reserve.retryWithReserve(() => work(held)),
    );

  async function isExpired({ expiry }: Meta): Promise<boolean> {
    const observer = await trashObserver.current();
    if (expiry === undefined || expiry === 'unreadable' || observer === undefined) return false;
    return decideExpiry(expiry, observer).verdict === 'purge';
  }

  const holderOf = (id: VolumeId, scope: Scope): ReturnType<HostLocks['holderOf']> =>
    runTrashScan(ctx, scope, async () => (await hostLocks?.holderOf(id)) ?? 'nobody');

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

  async function listExpired(retention: number, scope: Scope): Promise<readonly TrashEntry[]> {
    const names = await runTrashScan(ctx, scope, () => files.names(storeRoot.ownPath('trash')));
    await finishStaged(ctx, names, scope);
    const ids = names.filter(isVolumeId);
    const present = new Set(ids);
    records.keepOnly(present);
    if (ids.length === 0) return [];
    const observed = await runTrashScan(ctx, scope, observedTime.save);
    let serverTime: Promise<number | undefined> | undefined;
    const decide = async (expiry: Expiry): Promise<Verdict['verdict']> => {
      // Most entries only wait for the observed time of their owner. Ask the server only if its time can matter.
      if (decideExpiry(expiry, trashObserver.observerAt(observed, Number.MAX_SAFE_INTEGER)).verdict === 'keep')
        return 'keep';
      serverTime ??= runTrashScan(ctx, scope, trashObserver.serverTime);
      const serverNow = await serverTime;
      return serverNow === undefined
        ? 'keep'
        : decideExpiry(expiry, trashObserver.observerAt(observed, serverNow)).verdict;
    };
    const due: TrashEntry[] = [];
    const unrecorded: VolumeId[] = [];
    await eachBounded(ids, maxConcurrentReads, async (id) => {
      scope.signal.throwIfAborted();
      const meta = await records.readCached(id, scope);
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
    newExpiry: trashObserver.newExpiry,
    purge: async (id, scope, only) => {
      const isSameDeletion = async ({ deletedAt = 0 }: Meta): Promise<boolean> =>
        only === undefined || deletedAt === only.deletedAt;
      await runPurge(id, scope, (held) => purgeHeld(id, held, isSameDeletion));
    },
    purgeExpired: (id, scope) => runPurge(id, scope, (held) => purgeHeld(id, held, isExpired)),
    listExpired,
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
