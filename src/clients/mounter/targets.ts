import { existsSync, mkdirSync, rmdirSync, type Stats } from 'node:fs';
import { lstat, mkdir, open, opendir, realpath, rmdir, unlink } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Access } from '#core/model.ts';
import type { Mounter } from '#core/ports.ts';
import { holdPath } from './held-path.ts';
import type { HoldLocal } from './hold-local.ts';
import { createLocalTargets } from './local-targets.ts';
import { isAtOrBelow, type MountTable } from './mountinfo.ts';
import type { PathAccess } from './path-access.ts';
import { checkPath, resolveParents, undefinedIfMissing } from './paths.ts';

/** A mount at or below these hides a part of the system. */
const systemTrees = ['/bin', '/boot', '/dev', '/etc', '/lib', '/lib32', '/lib64', '/proc', '/sbin', '/sys', '/usr'];
/** A mount at these hides a part of the system; below them people do mount. */
const systemFolders = ['/', '/home', '/opt', '/root', '/run', '/tmp', '/var', '/var/lib', '/var/run', '/var/tmp'];

export interface TargetParts {
  readonly accessPath: PathAccess;
  readonly holdLocal: HoldLocal;
  readonly readTable: () => Promise<MountTable>;
  readonly forbiddenFolders: () => readonly string[];
  /** Mounts directly below this folder are allowed although it is inside a forbidden one: engines find their volumes there. */
  readonly publishedFolder?: string | undefined;
}

interface TargetRules {
  readonly forbiddenFolders: readonly string[];
  readonly publishedFolder: string | undefined;
  readonly realPaths: Map<string, string>;
}

const isSystem = (path: string): boolean =>
  systemFolders.includes(path) || systemTrees.some((tree) => isAtOrBelow(path, tree));
const isOutside = (path: string, folder: string | undefined): boolean =>
  folder !== undefined && !isAtOrBelow(path, folder);

export type Targets = Pick<Mounter, 'inspectTarget' | 'resolvePath' | 'makeTarget' | 'removeTarget'>;

export function createTargets({
  accessPath,
  holdLocal,
  readTable,
  forbiddenFolders,
  publishedFolder,
}: TargetParts): Targets {
  const localTargets = createLocalTargets(holdLocal);
  /** The resolved paths of the forbidden folders, as of the last check. */
  const realPaths = new Map<string, string>();
  const accessPathWithTable = async <T>(
    path: string,
    scope: Scope,
    work: (table: MountTable) => Promise<T>,
  ): Promise<T> => {
    checkPath(path);
    const table = await readTable();
    return await accessPath({ path, table, signal: scope.signal }, () => work(table));
  };
  /** In `publishedFolder` no other program creates or removes anything, and it is in memory, so access it synchronously. On any error take the slow path. */
  const isOwn = (target: string, access: Access): boolean =>
    access === 'filesystem' && publishedFolder !== undefined && dirname(target) === publishedFolder;
  return {
    inspectTarget: async (target, access, scope) => {
      if (isOwn(target, access) && (await readTable()).mountAt(target) === undefined && !existsSync(target))
        return { target, existed: false };
      checkPath(target);
      const folders = forbiddenFolders();
      const isFree = (path: string): boolean =>
        !isSystem(path) && folders.every((folder) => isOutside(path, realPaths.get(folder)));
      const found = localTargets.inspect(target, access, await readTable(), isFree);
      if (found !== undefined) return found;
      return await accessPathWithTable(target, scope, (table) =>
        inspect(target, access, { forbiddenFolders: folders, publishedFolder, realPaths }, table),
      );
    },
    resolvePath: async (path, scope) => {
      checkPath(path);
      return (
        localTargets.locate(path, await readTable()) ??
        (await accessPathWithTable(path, scope, (table) => locate(path, table)))
      );
    },
    makeTarget: async (target, access, scope) => {
      if (isOwn(target, access) && trySync(() => mkdirSync(target))) return;
      checkPath(target);
      if (localTargets.create(target, access, await readTable())) return;
      await accessPathWithTable(target, scope, () => createTarget(target, access));
    },
    removeTarget: async (target, scope) => {
      if (isOwn(target, 'filesystem') && trySync(() => rmdirSync(target))) return;
      checkPath(target);
      const table = await readTable();
      // A mounted target stays, and accessing it could wait for its server.
      if (table.mountAt(target) !== undefined || localTargets.remove(target, table)) return;
      try {
        await accessPathWithTable(target, scope, () => removeUnusedTarget(target));
      } catch (cause) {
        scope.signal.throwIfAborted();
        scope.log.info('failed to remove a target', { target, why: String(cause) });
      }
    },
  };
}

function trySync(work: () => void): boolean {
  try {
    work();
    return true;
  } catch {
    return false;
  }
}

async function inspect(
  target: string,
  access: Access,
  rules: TargetRules,
  table: MountTable,
): ReturnType<Mounter['inspectTarget']> {
  const { realTarget: location, stats } = await resolveTarget(target);
  await refuseForbidden(location, rules);
  // `bind` checks whether the right thing is mounted there.
  if (table.mountAt(location) !== undefined) return { target: location, existed: true };
  const found = stats === 'unknown' ? await undefinedIfMissing(lstat(location)) : stats;
  if (found === undefined) return { target: location, existed: false };
  if (access === 'filesystem' ? !found.isDirectory() : !found.isFile()) throw wrongKind(target, access);
  if (access === 'filesystem' ? await holdsEntries(location) : found.size > 0) throw notEmpty(target, access);
  return { target: location, existed: true };
}

async function locate(path: string, table: MountTable): Promise<string | undefined> {
  const location = await resolveParents(path);
  // A mount point is no link, and accessing it could wait for its server.
  if (location === undefined || table.mountAt(location) !== undefined) return location;
  return (await undefinedIfMissing(realpath(location))) ?? location;
}

/** Resolves all symbolic links, including the target itself. At most the last component may be missing. */
async function resolveTarget(
  target: string,
): Promise<{ readonly realTarget: string; readonly stats: Stats | undefined | 'unknown' }> {
  const location = await resolveParents(target);
  if (location === undefined) {
    throw new StowageError(`${target} cannot be created: the folder ${dirname(target)} does not exist`, {
      code: 'not-found',
      reason: 'target-parent-missing',
      action: `Create the folder first: mkdir -p ${dirname(target)}`,
    });
  }
  const found = await undefinedIfMissing(lstat(location)).catch((cause: unknown) => {
    // A mount whose server is gone: the mount table says what is there, and `bind` decides.
    if (isErrno(cause, 'ENOTCONN', 'EIO', 'ESTALE')) return 'unknown' as const;
    throw cause;
  });
  if (found === 'unknown' || found?.isSymbolicLink() !== true) return { realTarget: location, stats: found };
  const linkTarget = await undefinedIfMissing(realpath(location));
  if (linkTarget !== undefined) return { realTarget: linkTarget, stats: 'unknown' };
  throw new StowageError(`${target} is a symbolic link to something that does not exist`, {
    code: 'conflict',
    reason: 'target-dangling',
    action: 'Remove the link, or give another path.',
  });
}

async function refuseForbidden(
  realTarget: string,
  { forbiddenFolders, publishedFolder, realPaths }: TargetRules,
): Promise<void> {
  if (isSystem(realTarget)) {
    throw new StowageError(`${realTarget} belongs to the system; a volume mounted there would hide it`, {
      code: 'invalid',
      reason: 'target-forbidden',
      action: 'Give a path of your own, for example /mnt/data.',
    });
  }
  if (dirname(realTarget) === publishedFolder) return;
  for (const folder of forbiddenFolders) {
    const found = await undefinedIfMissing(realpath(folder));
    if (found === undefined) realPaths.delete(folder);
    else realPaths.set(folder, found);
    if (!isAtOrBelow(realTarget, found ?? folder)) continue;
    throw new StowageError(`${realTarget} is inside ${folder}, which is reserved for Stowage`, {
      code: 'invalid',
      reason: 'target-forbidden',
      action: 'Give a path outside the state folder and outside every store.',
    });
  }
}

/** Creates only the last component: a parent that was removed meanwhile is not created again. */
async function createTarget(target: string, access: Access): Promise<void> {
  try {
    await using parent = await holdPath(dirname(target));
    const childPath = `${parent.procPath}/${basename(target)}`;
    if (access === 'filesystem') await mkdir(childPath);
    else await (await open(childPath, 'wx')).close();
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return;
    if (cause instanceof StowageError) throw cause;
    throw new StowageError(`${target} cannot be created`, {
      code: isErrno(cause, 'ENOSPC', 'EDQUOT') ? 'exhausted' : 'denied',
      reason: 'target-not-made',
      action: `Check that the folder ${dirname(target)} exists, is writable and has free space, or give another path.`,
      cause,
    });
  }
}

/** A target that is not empty, or has something mounted on it, stays: another program uses it. */
async function removeUnusedTarget(target: string): Promise<void> {
  await using parent = await undefinedIfMissing(holdPath(dirname(target)));
  if (parent === undefined) return;
  const childPath = `${parent.procPath}/${basename(target)}`;
  const found = await undefinedIfMissing(lstat(childPath));
  if (found?.isDirectory() === true) await undefinedIfMissing(rmdir(childPath));
  else if (found?.isFile() === true && found.size === 0) await undefinedIfMissing(unlink(childPath));
}

async function holdsEntries(folder: string): Promise<boolean> {
  await using entries = await opendir(folder);
  return (await entries.read()) !== null;
}

function notEmpty(target: string, access: Access): StowageError {
  return new StowageError(`${target} is not empty; a volume mounted there would hide what is in it`, {
    code: 'conflict',
    reason: 'target-not-empty',
    action: `Give ${access === 'filesystem' ? 'an empty folder' : 'an empty file'}, or a path that does not exist yet.`,
  });
}

function wrongKind(target: string, access: Access): StowageError {
  const [kind, wanted] = access === 'filesystem' ? ['a file system', 'folder'] : ['a block device', 'file'];
  return new StowageError(`${target} is not a ${wanted}, and ${kind} is mounted on a ${wanted}`, {
    code: 'conflict',
    reason: 'target-kind',
    action: `Give an empty ${wanted}, or a path that does not exist yet.`,
  });
}
