import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeId, VolumeSpec } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Store } from '#core/ports.ts';
import { beingCreated, dataUnrecorded, dataUnusable, nameTaken } from './errors.ts';
import { isDefiniteFailure } from './files.ts';
import { finishInterrupted } from './finish-interrupted.ts';
import type { HeldScope } from './held-scope.ts';
import type { Meta } from './meta.ts';
import { encodeMeta, sameLabels } from './meta.ts';
import { makeParents } from './parent-folders.ts';
import type { VerbContext } from './verb-context.ts';

/** Retries of one create while other hosts release and take the name. */
const maxAttempts = 8;

/**
 * Creates the record exclusively and makes it durable before it creates the data. The record is the intent, and it prevents a second creation
 * of the same volume. Existing data are complete, since they appear in one step.
 */
export function createCreate(ctx: VerbContext): Store['create'] {
  const { storeRoot, layout, dataPath, volume } = ctx;
  const { files, hostLocks } = storeRoot;

  async function createNew(want: VolumeSpec, scope: Scope, attempt = 1): Promise<Volume> {
    if (attempt > maxAttempts) throw beingCreated(want.name, storeRoot.store);
    const unused = layout.opaque ? ({ unused: true } as const) : {};
    const meta = { ...newMeta(want, layout.paths?.pathFor(want)), ...unused };
    // Check for existing data before the record gets its text. After a crash between record and data, any data there can then
    // only be our own.
    const limit = ctx.limit();
    const outcome = await files.writeNewUnless(dataPath(meta), storeRoot.metaPath(meta.name), encodeMeta(meta));
    if (outcome !== 'written') return resolveExisting(want, dataPath(meta), scope, attempt);
    limit.check();
    return makeData(meta, scope).catch((cause: unknown) => {
      if (isOutcomeUnknown(cause)) throw cause;
      // Under the volume's lock: another host may have got the same request and be making the data of the same record.
      return ctx.withVolumeLock(meta.id, scope, (held) => rollBack(meta, cause, held));
    });
  }

  async function makeData(meta: Meta, scope: Scope): Promise<Volume> {
    let isMade = false;
    try {
      await makeParents(ctx, meta, scope);
      await layout.make(meta, dataPath(meta), scope);
      isMade = true;
      await storeRoot.sync();
      return volume(meta);
    } catch (cause) {
      // Another host got the same request, and made the data of this same record.
      if (isErrno(cause, 'EEXIST') && hostLocks !== undefined) return volume(meta);
      if (isMade) await layout.discard(dataPath(meta), meta.id);
      throw cause;
    }
  }

  /** The server did not answer. Keep the record, so that a retry of the request finds the outcome, and no other request gets the name. */
  const isOutcomeUnknown = (cause: unknown): boolean => hostLocks !== undefined && !isDefiniteFailure(cause);

  /** Removes the record that this host wrote if its data could not be made. */
  async function rollBack(meta: Meta, cause: unknown, { limit }: HeldScope): Promise<Volume> {
    if (hostLocks !== undefined && (await files.lstat(dataPath(meta))) !== undefined) return volume(meta);
    limit.check();
    await files.unlink(storeRoot.metaPath(meta.name));
    hostLocks?.forget(meta.id, 'gone');
    if (isErrno(cause, 'EEXIST')) throw dataUnrecorded(meta.name, dataPath(meta), storeRoot.store);
    throw cause;
  }

  async function resolveExisting(
    want: VolumeSpec,
    plannedPath: string,
    scope: Scope,
    attempt: number,
  ): Promise<Volume> {
    const read = await ctx.read(want.name);
    const path = read.state === 'ok' ? dataPath(read.meta) : plannedPath;
    const data = await files.lstat(path);
    if (read.state === 'absent') {
      if (data === undefined) return createNew(want, scope, attempt + 1);
      throw dataUnrecorded(want.name, path, storeRoot.store);
    }
    if (read.state === 'torn' && (data === undefined || hostLocks !== undefined)) {
      const isOurs = await ctx.takeOverTorn(want.name, scope);
      // Keep the empty record if there are data: it may reserve the name for a volume whose data have moved and whose record has not.
      if (isOurs && data !== undefined) throw dataUnrecorded(want.name, path, storeRoot.store);
      if (isOurs) await files.unlink(storeRoot.metaPath(want.name));
      return createNew(want, scope, attempt + 1);
    }
    if (read.state !== 'ok') throw read.error;
    const { meta } = read;
    if (data === undefined)
      return (
        (await ctx.withVolumeLock(meta.id, scope, (held) => completeVolume(want, meta.id, held))) ??
        createNew(want, scope, attempt + 1)
      );
    refuseDifferentRequest(meta, want, storeRoot.store);
    const wrong = layout.unsuitableBecause(data);
    if (wrong !== undefined) throw dataUnusable(want.name, path, wrong);
    // The first call may have died before its sync.
    await storeRoot.sync();
    return volume(meta);
  }

  /** Makes the data of a record that has none. Call it with the volume locked. Undefined: the record has changed since. */
  async function completeVolume(want: VolumeSpec, id: VolumeId, scope: HeldScope): Promise<Volume | undefined> {
    const read = await ctx.read(want.name);
    if (read.state !== 'ok' || read.meta.id !== id || (await finishInterrupted(ctx, read.meta, scope)))
      return undefined;
    const { meta } = read;
    refuseDifferentRequest(meta, want, storeRoot.store);
    if ((await files.lstat(dataPath(meta))) !== undefined) return volume(meta);
    scope.limit.check();
    return makeData(meta, scope).catch((cause: unknown) => {
      // The host that wrote the record may be making the data right now, so only that host may roll back.
      if (isOutcomeUnknown(cause) || (hostLocks !== undefined && meta.instance !== storeRoot.context.instance))
        throw cause;
      return rollBack(meta, cause, scope);
    });
  }

  return (want, scope) =>
    ctx.runVerb(`creating volume ${quoted(want.name)}`, [want.name], scope, () => {
      layout.refuseUnsupported(want.bytes, want.access);
      return createNew(want, scope);
    });
}

export function newMeta(want: VolumeSpec, path: string | undefined): Meta {
  const { id, name, bytes, enforce = false, access, labels, requestId, createdAt, instance } = want;
  return {
    id,
    name,
    bytes,
    enforce,
    access,
    labels,
    requestId,
    createdAt,
    instance,
    revision: 1,
    ...(path === undefined ? {} : { path }),
  };
}

function refuseDifferentRequest(meta: Meta, want: VolumeSpec, store: string): void {
  if (meta.requestId !== want.requestId) throw nameTaken(want.name, store);
  const isSame = meta.bytes === want.bytes && meta.enforce === (want.enforce ?? false) && meta.access === want.access;
  if (isSame && sameLabels(meta.labels, want.labels)) return;
  throw new StowageError(
    `this request has already created volume ${quoted(want.name)}, with another size, enforcement, access or labels`,
    {
      code: 'exists',
      reason: 'request-differs',
      action: 'Repeat the request as it was, or make a new request under another name.',
    },
  );
}
