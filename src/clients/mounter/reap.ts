import { lstat, readdir, realpath, stat } from 'node:fs/promises';
import { join, parse } from 'node:path';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId } from '#core/model.ts';
import { isVolumeId, isVolumeName } from '#core/names.ts';
import { type Loop, listAttachedLoops, loopMounts } from './attached-loops.ts';
import type { LoopDevices } from './loop-devices.ts';
import type { LoopFiles } from './loop-files.ts';
import { isAtOrBelow, type MountTable } from './mountinfo.ts';
import { undefinedIfMissing } from './paths.ts';
import { scratchNames } from './scratch-bind.ts';

export interface ReapParts extends LoopFiles {
  readonly loopDevices: Pick<LoopDevices, 'detach'>;
  readonly readTable: () => Promise<MountTable>;
  readonly unmount: (at: string, scope: Scope) => Promise<void>;
  readonly removeTarget: (at: string, scope: Scope) => Promise<void>;
  readonly storeRoots: () => readonly string[];
  readonly sysBlock: string;
}

/** Reaps only entries of the folder named like a volume id or a scratch mount, and only loop devices on images of Stowage's stores. */
export async function reap(
  parts: ReapParts,
  mountsFolder: string,
  knownVolumes: ReadonlySet<VolumeId>,
  scope: Scope,
): Promise<readonly string[]> {
  const freed: string[] = [];
  const folder = await undefinedIfMissing(realpath(mountsFolder));
  const isStale = (name: string): boolean => (isVolumeId(name) ? !knownVolumes.has(name) : scratchNames.includes(name));
  const stale = folder === undefined ? [] : (await readdir(folder)).filter(isStale);
  for (const name of stale) {
    const mountPoint = join(folder ?? '', name);
    if (await unmountUnused(parts, mountPoint, scope)) freed.push(mountPoint);
  }
  for (const loop of await idleLoops(parts, scope)) {
    scope.signal.throwIfAborted();
    if (await parts.loopDevices.detach(loop, scope)) freed.push(loop.node);
  }
  return freed;
}

async function unmountUnused(parts: ReapParts, at: string, scope: Scope): Promise<boolean> {
  try {
    await parts.unmount(at, scope);
  } catch (cause) {
    if (!(cause instanceof StowageError) || cause.code !== 'in-use') throw cause;
    scope.log.warn('a staged mount of an unknown volume is in use: keeping it', { at, why: cause.message });
    return false;
  }
  await parts.removeTarget(at, scope);
  return (await undefinedIfMissing(lstat(at))) === undefined;
}

async function idleLoops(parts: ReapParts, scope: Scope): Promise<readonly Loop[]> {
  const loops = await listAttachedLoops(parts.sysBlock);
  if (loops.length === 0) return [];
  const roots = await Promise.all(
    parts.storeRoots().map(async (root) => (await undefinedIfMissing(realpath(root))) ?? root),
  );
  const table = await parts.readTable();
  const idle = loops.filter((loop) => !loop.stacked && loopMounts(loop, table).length === 0);
  const areOnImages = await Promise.all(idle.map((loop) => isOnImage(parts, loop, roots, scope)));
  return idle.filter((_, index) => areOnImages[index]);
}

async function isOnImage(parts: ReapParts, loop: Loop, roots: readonly string[], { log }: Scope): Promise<boolean> {
  const { findLoops } = parts;
  if (loop.deleted) return roots.some((root) => isOurs(loop.file, root)) || (await wasDeletedByUs(parts, loop, roots));
  // The attaching process may have seen the store at another path, so only the part below the store's root can be compared.
  const names = loop.file.split('/').slice(1);
  const pathEnds = names.map((_, from) => names.slice(from).join('/'));
  try {
    for (const root of roots)
      for (const path of pathEnds.map((end) => join(root, end)).filter((one) => isOurs(one, root)))
        if ((await findLoops(path, [loop])).length > 0) return true;
  } catch (cause) {
    if (!(cause instanceof StowageError)) throw cause;
    log.warn('failed to reap a loop device', { loop: loop.node, why: cause.message, action: cause.action });
  }
  return false;
}

/**
 * A container may have attached the file by another path, and a deleted file cannot be looked up. So a device counts as Stowage's only if its
 * file has the name that Stowage gives to images that it deletes, and is on the file system of a store.
 */
async function wasDeletedByUs({ backingFile }: ReapParts, loop: Loop, roots: readonly string[]): Promise<boolean> {
  const id = /\/\.stowage\/deleting\/([^/]+)\.img$/.exec(loop.file)?.[1];
  if (id === undefined || !isVolumeId(id)) return false;
  const found = await backingFile(loop);
  // If a store's disk fails, leave its devices attached instead of failing the start.
  const stores = await Promise.all(roots.map((root) => stat(root, { bigint: true }).catch(() => undefined)));
  return stores.some((store) => store !== undefined && store.dev === found?.device);
}

/** A volume's image, or one that is being created or deleted. Files inside a volume belong to its users, whatever their names. */
function isOurs(file: string, root: string): boolean {
  const { dir, name, ext } = parse(file);
  if (dir === root) return ext === '.img' && isVolumeName(name);
  return ['trash', 'deleting', 'tmp'].some((folderName) => isAtOrBelow(file, join(root, '.stowage', folderName)));
}
