import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { chmod, mkdir, open, realpath, rename, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { coalesce } from '#base/coalesce.ts';
import { errnoOf, isErrno } from '#base/errno.ts';
import type { FileIdentity } from '#base/linux/page-cache-io.ts';
import type { Log } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreName } from '#core/model.ts';
import type { StoreContext } from '#core/ports.ts';
import { type Files, isFull } from '../file-store/files.ts';
import { readIdentity, refuseOtherLayout, refuseOtherStore, writeIdentity } from '../file-store/identity.ts';
import type { Meta } from '../file-store/meta.ts';
import { encodeMeta, formatVersion } from '../file-store/meta.ts';
import type { StoreRoot } from '../file-store/store-root.ts';
import { rootChanged, rootMissing, storeFailure } from './errors.ts';
import { localFiles, lstatIfThere, unlinkIfThere, writeNew } from './files.ts';
import { lockStore } from './lock.ts';
import type { LocalOptions } from './options.ts';
import { answersFromCache, filesIn, folderInCache } from './page-cache-files.ts';
import { createReserve } from './reserve.ts';
import { roomAt } from './room.ts';
import type { SlotsOfDevice } from './slots-by-device.ts';

const folders = ['tmp', 'deleting', 'trash', 'retained'];

interface FoundRoot {
  readonly root: string;
  readonly device: bigint;
  readonly files: Files;
  verify(): Promise<void>;
}

/** Checks device and inode, because the path alone also matches the empty mount point of an unmounted disk. */
async function findRoot(options: LocalOptions): Promise<FoundRoot> {
  const throwMissing = (cause: unknown): never => {
    const code = errnoOf(cause);
    throw code === 'ENOENT' || code === 'ENOTDIR'
      ? rootMissing(options.root, cause)
      : storeFailure(cause, `looking at ${options.root}`, options.root);
  };
  const root = await realpath(options.root).catch(throwMissing);
  const first = await stat(root, { bigint: true }).catch(throwMissing);
  if (!first.isDirectory()) {
    throw new StowageError(`${options.root} is not a directory`, {
      code: 'invalid',
      reason: 'store-root-not-directory',
      action: 'Give the store a directory of its own.',
    });
  }
  const isOpenedRoot = ({ dev, ino }: FileIdentity): boolean => dev === first.dev && ino === first.ino;
  const verifyWithStat = coalesce(async () => {
    if (!isOpenedRoot(await stat(root, { bigint: true }).catch(throwMissing))) throw rootChanged(root);
  });
  // Use the page cache if possible: every call of the store begins with this check, and the thread pool is much slower.
  const usesPageCache = await answersFromCache(root).catch(throwMissing);
  const verify = async (): Promise<void> => {
    const known = usesPageCache ? folderInCache(root) : undefined;
    if (known === undefined || !isOpenedRoot(known)) await verifyWithStat();
  };
  return { root, device: first.dev, files: await filesIn(root).catch(throwMissing), verify };
}

const commonParts = ({ root, files, verify }: FoundRoot) => ({
  root,
  verify,
  files,
  baseUri: `local://${root}`,
  hostLocks: undefined,
  room: () => roomAt(root),
  failure: (cause: unknown, doing: string) => storeFailure(cause, doing, root),
});

export async function openReadOnlyStoreRoot(
  options: LocalOptions,
  store: StoreName,
  context: StoreContext,
  slotsOfDevice: SlotsOfDevice,
): Promise<StoreRoot> {
  const found = await findRoot(options);
  const ownPath = (...parts: readonly string[]): string => join(found.root, '.stowage', ...parts);
  // A read-only store needs no records: all directories are volumes. So ignore records that this user may not read.
  const recorded = await readIdentity(localFiles, ownPath('store.json')).catch((cause: unknown) => {
    if (cause instanceof StowageError) throw cause;
    return { layout: options.layout, uuid: context.identity };
  });
  await refuseOtherStore(localFiles, found.root, store, recorded, context.identity);
  if (recorded !== undefined) refuseOtherLayout(found.root, recorded.layout, options.layout);
  const throwReadOnly = (): never => {
    throw new Error('a read-only store was about to be written');
  };
  return {
    store,
    context,
    ownPath,
    identity: recorded?.uuid,
    callSlots: slotsOfDevice(found.device),
    ...commonParts(found),
    metaPath: (name) => join(found.root, `${name}.meta`),
    scratchPath: throwReadOnly,
    isLeftover: () => false,
    sync: throwReadOnly,
    replaceRecord: throwReadOnly,
    reserve: { retryWithReserve: (work) => work(), refill: async () => undefined },
    close: async () => undefined,
  };
}

export async function openStoreRoot(
  options: LocalOptions,
  store: StoreName,
  context: StoreContext,
  log: Log,
  slotsOfDevice: SlotsOfDevice,
): Promise<StoreRoot> {
  const found = await findRoot(options);
  const { root } = found;
  const ownPath = (...parts: readonly string[]): string => join(root, '.stowage', ...parts);
  const runId = randomBytes(6).toString('hex');
  let scratchCount = 0;
  await using stack = new AsyncDisposableStack();
  try {
    await refuseForeign(ownPath());
    await refuseOtherStore(
      localFiles,
      root,
      store,
      await readIdentity(localFiles, ownPath('store.json')),
      context.identity,
    );
    await refuseShared(root, ownPath('locks'));
    await makeOwnFolder(ownPath());
    for (const folder of folders) await mkdir(ownPath(folder), { mode: 0o700, recursive: true });
    const scratchPath = (): string => ownPath('tmp', `${runId}-${++scratchCount}`);
    // Taking the lock runs on the main thread. On a hung disk that would stop the whole server. So first write a file on the thread
    // pool, which hangs there instead.
    await probeWrite(scratchPath());
    stack.use(await lockStore(ownPath('lock'), ownPath('owner.json'), root));
    const recorded = await readIdentity(localFiles, ownPath('store.json'));
    if (recorded !== undefined) refuseOtherLayout(root, recorded.layout, options.layout);
    const identity =
      recorded?.uuid ?? (await writeIdentity(localFiles, ownPath('store.json'), scratchPath(), options.layout));
    await writeOwnerFile(ownPath('owner.json'), scratchPath(), context, log);
    // Kept open for fsync: opening it each time would double the calls of every create and delete.
    const handle = await open(root, constants.O_RDONLY | constants.O_DIRECTORY);
    stack.defer(() => handle.close());
    const callSlots = slotsOfDevice(found.device);
    const syncRoot = coalesce(() => handle.sync());
    const sync = (): Promise<void> => callSlots.short.releaseDuring(syncRoot);
    const replaceRecord = async (path: string, meta: Meta): Promise<void> => {
      const fresh = scratchPath();
      await writeNew(fresh, encodeMeta(meta));
      await rename(fresh, path).catch(async (cause: unknown) => {
        await unlinkIfThere(fresh);
        throw cause;
      });
      await sync();
    };
    // If a disk was mounted at the root in the meantime, all files above were written below its mount point.
    await found.verify();
    const held = stack.move();
    return {
      store,
      context,
      ownPath,
      scratchPath,
      sync,
      replaceRecord,
      identity,
      callSlots,
      reserve: createReserve({ ownPath, root }),
      ...commonParts(found),
      metaPath: (name) => join(root, `${name}.meta`),
      isLeftover: (name) => !name.startsWith(`${runId}-`),
      close: () => held.disposeAsync(),
    };
  } catch (cause) {
    throw storeFailure(cause, `opening store ${store}`, root);
  }
}

/** If we run as root and `.stowage` belongs to another user, that user could choose what we read or delete. */
async function refuseForeign(path: string): Promise<void> {
  const stats = await lstatIfThere(path);
  const ownUid = process.geteuid?.();
  if (stats === undefined || (stats.isDirectory() && (ownUid === undefined || stats.uid === ownUid))) return;
  const what = stats.isDirectory() ? `belongs to user ${stats.uid}` : 'is not a directory';
  throw new StowageError(`${path} ${what}, so it cannot hold this store's records`, {
    code: 'denied',
    reason: 'store-records-foreign',
    action: stats.isDirectory() ? `If the store is yours: chown -R ${ownUid} ${path}` : `Move ${path} away.`,
  });
}

/** Hosts that use the directory over NFS do not see the lock of a local store. */
async function refuseShared(root: string, locks: string): Promise<void> {
  if ((await lstatIfThere(locks)) === undefined) return;
  throw new StowageError(`${root} is an NFS store of other hosts`, {
    code: 'conflict',
    reason: 'store-shared-elsewhere',
    action: `Add it as an NFS store here, too; or open it read-only: readOnly=true. Once no host uses it over NFS: rm -r ${locks}`,
  });
}

async function makeOwnFolder(path: string): Promise<void> {
  try {
    await mkdir(path, { mode: 0o700 });
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST')) throw cause;
    // It may have been created after the first check.
    await refuseForeign(path);
    const { mode } = await stat(path);
    if ((mode & 0o077) !== 0) await chmod(path, 0o700);
  }
}

/** Ignores a full disk: it has responded, and the store must open so that volumes can be deleted. */
async function probeWrite(path: string): Promise<void> {
  try {
    await writeNew(path, 'probe');
    await unlinkIfThere(path);
  } catch (cause) {
    if (!isFull(cause)) throw cause;
  }
}

/** Records the holder for the error that a second opener gets. A full disk must not prevent opening: deleting needs an open store. */
async function writeOwnerFile(path: string, scratchPath: string, context: StoreContext, log: Log): Promise<void> {
  try {
    const { instance, node } = context;
    await writeNew(scratchPath, `${JSON.stringify({ version: formatVersion, instance, pid: process.pid, node })}\n`);
    await rename(scratchPath, path);
  } catch (cause) {
    if (!isFull(cause)) throw cause;
    log.warn('no space to record the holder of the store', { path });
  }
}
