import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { Volume, VolumeId, VolumeName, VolumeRef } from '#core/model.ts';
import { inUseElsewhere } from '#core/mount-errors.ts';
import { isVolumeId } from '#core/names.ts';
import type { CallSlots } from './call-slots.ts';
import { beingCreated, notFound } from './errors.ts';
import type { Unremovable } from './files.ts';
import { finishInterrupted } from './finish-interrupted.ts';
import { createHeldScopes, type HeldScope, type HoldLimit } from './held-scope.ts';
import type { Layout } from './layout.ts';
import type { Meta, MetaRead } from './meta.ts';
import { hasMoveIntent, readNamedMeta, volumeOf } from './meta.ts';
import { recordedNames } from './read-verbs.ts';
import type { StoreRoot } from './store-root.ts';
import { trashedId } from './trash-names.ts';

/** The functions and state that the verbs of one open store share. */
export interface VerbContext {
  readonly storeRoot: StoreRoot;
  readonly layout: Layout;
  readonly clock: Clock;
  dataPath(volume: Pick<Meta, 'name' | 'path'>): string;
  read(name: VolumeName): Promise<MetaRead>;
  volume(meta: Meta): Volume;
  /**
   * Locks the names, takes a call slot, checks the root, and turns every error into a StowageError. Names that are volume ids are locked
   * against other hosts too, so work that changes an existing volume must pass its id. `doing` completes "… failed".
   */
  runVerb<T>(
    doing: string,
    names: readonly string[],
    scope: Scope,
    work: (scope: HeldScope) => Promise<T>,
    length?: keyof CallSlots,
  ): Promise<T>;
  /** Like `runVerb`, for work that removes a volume from the root if it is there. May repeat the work: if the store is full, it removes a piece of the reserve and retries. */
  runRemoval(
    doing: string,
    ref: VolumeRef,
    scope: Scope,
    work: (meta: Meta, scope: HeldScope) => Promise<void>,
    /** `keepsQuota`: the work can still refuse, and calls `removeQuota` itself once it no longer can. */
    options?: { readonly keepsQuota?: boolean },
  ): Promise<void>;
  /** Removes the volume's quota records, which are not part of its data. Idempotent. */
  removeQuota(meta: Meta): Promise<void>;
  /** Runs the work with the volume locked against other hosts. The caller has already locked its name in this process. */
  withVolumeLock<T>(id: VolumeId, scope: Scope, work: (scope: HeldScope) => Promise<T>): Promise<T>;
  /** The record of the volume with this id and name, after finishing an interrupted operation on it. Undefined: absent. */
  find(ref: VolumeRef, scope: HeldScope): Promise<Meta | undefined>;
  /** Like `find`, but absence is an error. */
  findOrThrow(ref: VolumeRef, scope: HeldScope): Promise<Meta>;
  /** Whether no record of the volume is left anywhere. Call it with the volume locked. Reads all records. */
  hasNoRecord(id: VolumeId, scope: HeldScope): Promise<boolean>;
  /** Like `find`, but also finds the volume if another host has renamed it. */
  findRenamed(ref: VolumeRef, scope: HeldScope): Promise<Meta | undefined>;
  /**
   * Throws if a host uses the volume. Call it with the volume locked: a host that begins to use it takes the same lock, so either it
   * fails or we do.
   */
  refuseIfUsed(meta: Meta, verb: string): Promise<void>;
  /** Like `takeOverTorn`, without waiting. False: a host works on the record, or it has changed. */
  tryTakeOverTorn(name: VolumeName): Promise<boolean>;
  /**
   * Takes over an empty or truncated record. Waits while another host works on it. False: it has changed.
   */
  takeOverTorn(name: VolumeName, scope: Scope): Promise<boolean>;
  /** A limit that starts now, for names, which are taken by creating a record. Work that has a volume locked uses the limit of its scope. */
  limit(): HoldLimit;
  /** An operation may have stopped half-way since the last full sweep, or there was no sweep yet. */
  needsSweep: boolean;
  /** Data that the last `reclaim` could not remove from `deleting/`. */
  undeletable: readonly Unremovable[];
}

/** A host needs one call to the server between creating an empty record and filling it. */
const tornTimeoutMs = 5_000;
const tornRetryMs = 50;
const maxConcurrentReads = 16;

export function createVerbContext(storeRoot: StoreRoot, layout: Layout, clock: Clock): VerbContext {
  const { files, hostLocks } = storeRoot;
  const locks = createKeyedLock();
  const { withVolumesLocked, limitFrom } = createHeldScopes(hostLocks, clock);
  const read = (name: VolumeName): Promise<MetaRead> =>
    readNamedMeta(files, storeRoot.metaPath(name), name, storeRoot.context.instance);

  const isTorn = async (name: VolumeName): Promise<boolean> => (await read(name)).state === 'torn';

  async function find(ref: VolumeRef, scope: HeldScope): Promise<Meta | undefined> {
    const found = await read(ref.name);
    if (found.state === 'absent') return undefined;
    if (found.state !== 'ok') {
      // On a shared store only the creator of a record leaves it empty, so no volume has the name yet.
      if (found.state === 'torn' && (hostLocks !== undefined || (await files.lstat(ctx.dataPath(ref))) === undefined))
        return undefined;
      throw found.error;
    }
    if (found.meta.id !== ref.id) return undefined;
    if (!hasMoveIntent(found.meta) || !(await finishInterrupted(ctx, found.meta, scope))) return found.meta;
    const { movingTo } = found.meta;
    return movingTo === undefined ? undefined : find({ id: ref.id, name: movingTo }, scope);
  }

  /** Finds a volume by its id alone, by reading all records. Only on shared stores, where other hosts can rename it. */
  async function findByIdAlone(id: VolumeId, scope: HeldScope): Promise<Meta | undefined> {
    if (hostLocks === undefined) return undefined;
    let found: Meta | undefined;
    await eachBounded(recordedNames(await files.names(storeRoot.root)), maxConcurrentReads, async (name) => {
      scope.signal.throwIfAborted();
      const record = await read(name);
      if (record.state === 'ok' && record.meta.id === id) found = await find({ id, name }, scope);
    });
    return found;
  }

  const ctx: VerbContext = {
    storeRoot,
    layout,
    clock,
    read,
    find,
    needsSweep: true,
    undeletable: [],
    dataPath: ({ name, path }) => `${storeRoot.root}/${path ?? `${name}${layout.suffix}`}`,
    volume: (meta) => volumeOf(meta, storeRoot.store),
    runVerb: async (doing, names, scope, work, length = 'short') => {
      try {
        scope.signal.throwIfAborted();
        using _held = await locks.hold(names, scope.signal);
        using _slot = await storeRoot.callSlots[length].acquire(scope.signal);
        await storeRoot.verify();
        return await withVolumesLocked(names.filter(isVolumeId), scope, work);
      } catch (cause) {
        // A StowageError means that nothing was changed. After any other error the operation may have stopped half-way.
        if (!(cause instanceof StowageError)) ctx.needsSweep = true;
        throw await explain(storeRoot, cause, doing, scope);
      }
    },
    withVolumeLock: (id, scope, work) => withVolumesLocked([id], scope, work),
    removeQuota: async ({ enforce, id }) => {
      if (enforce) await layout.removeQuota?.(id);
    },
    runRemoval: (doing, ref, scope, work, options) =>
      ctx.runVerb(doing, [ref.name, ref.id], scope, (held) =>
        storeRoot.reserve.retryWithReserve(async () => {
          const meta = await ctx.findRenamed(ref, held);
          if (meta === undefined) return hostLocks?.forget(ref.id, 'not found');
          await ctx.refuseIfUsed(meta, 'deleted');
          held.limit.check();
          if (options?.keepsQuota !== true) await ctx.removeQuota(meta);
          await work(meta, held);
        }),
      ),
    findRenamed: async (ref, scope) => (await find(ref, scope)) ?? (await findByIdAlone(ref.id, scope)),
    hasNoRecord: async (id, scope) =>
      !(await files.names(storeRoot.ownPath('trash'))).some((name) => trashedId(name) === id) &&
      (await files.lstat(storeRoot.ownPath('retained', `${id}.meta`))) === undefined &&
      (await findByIdAlone(id, scope)) === undefined,
    refuseIfUsed: async (meta, verb) => {
      const uses = (await hostLocks?.usesOf(meta.id)) ?? [];
      if (uses.length > 0) throw inUseElsewhere(ctx.volume(meta), verb, uses);
    },
    findOrThrow: async (ref, scope) => {
      const meta = await find(ref, scope);
      if (meta !== undefined) return meta;
      hostLocks?.forget(ref.id, 'not found');
      throw notFound(ref.name, storeRoot.store);
    },
    tryTakeOverTorn: async (name) =>
      hostLocks === undefined || hostLocks.takeOverName(storeRoot.metaPath(name), () => isTorn(name)),
    takeOverTorn: async (name, scope) => {
      for (const since = clock.elapsed(); clock.elapsed() - since < tornTimeoutMs; ) {
        if (await ctx.tryTakeOverTorn(name)) return true;
        await clock.sleep(tornRetryMs, scope.signal);
        if (!(await isTorn(name))) return false;
      }
      throw beingCreated(name, storeRoot.store);
    },
    limit: () => limitFrom(clock.elapsed()),
  };
  return ctx;
}

async function explain(storeRoot: StoreRoot, cause: unknown, doing: string, scope: Scope): Promise<StowageError> {
  if (cause instanceof StowageError) return cause;
  if (scope.signal.aborted) return stowageError(scope.signal.reason);
  // If the whole store is gone, say that rather than that one file is missing.
  const rootFailure = isErrno(cause, 'ENOENT')
    ? await storeRoot.verify().then(() => undefined, stowageError)
    : undefined;
  return rootFailure ?? storeRoot.failure(cause, `${doing} in store ${storeRoot.store}`);
}
