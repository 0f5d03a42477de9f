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
import { checkPath, located, unlessMissing } from './paths.ts';

/** A mount at or below these hides a part of the system. */
const systemTrees = ['/bin', '/boot', '/dev', '/etc', '/lib', '/lib32', '/lib64', '/proc', '/sbin', '/sys', '/usr'];
/** A mount at these hides a part of the system; below them people do mount. */
const systemFolders = ['/', '/home', '/opt', '/root', '/run', '/tmp', '/var', '/var/lib', '/var/run', '/var/tmp'];

export interface TargetParts {
  readonly accessPath: PathAccess;
  readonly near: HoldLocal;
  readonly readTable: () => Promise<MountTable>;
  readonly forbidden: () => readonly string[];
  /** Mounts directly below this folder are allowed although it is inside a forbidden one: engines find their volumes there. */
  readonly published?: string | undefined;
}

interface Rules {
  readonly forbidden: readonly string[];
  readonly published: string | undefined;
  readonly real: Map<string, string>;
}

const isSystem = (place: string): boolean =>
  systemFolders.includes(place) || systemTrees.some((tree) => isAtOrBelow(place, tree));
const isOutside = (place: string, folder: string | undefined): boolean =>
  folder !== undefined && !isAtOrBelow(place, folder);

export type Targets = Pick<Mounter, 'inspectTarget' | 'resolvePath' | 'makeTarget' | 'removeTarget'>;

export function createTargets({ accessPath, near, readTable, forbidden, published }: TargetParts): Targets {
  const inLine = createLocalTargets(near);
  /** The resolved paths of the forbidden folders, as of the last check. */
  const real = new Map<string, string>();
  const lookAt = async <T>(path: string, scope: Scope, work: (table: MountTable) => Promise<T>): Promise<T> => {
    checkPath(path);
    const table = await readTable();
    return await accessPath({ path, table, signal: scope.signal }, () => work(table));
  };
  /** In `published` no other program creates or removes anything, and it is in memory, so access it synchronously. On any error take the slow path. */
  const isOwn = (target: string, access: Access): boolean =>
    access === 'filesystem' && published !== undefined && dirname(target) === published;
  return {
    inspectTarget: async (target, access, scope) => {
      if (isOwn(target, access) && (await readTable()).at(target) === undefined && !existsSync(target))
        return { target, existed: false };
      checkPath(target);
      const folders = forbidden();
      const isFree = (place: string): boolean =>
        !isSystem(place) && folders.every((folder) => isOutside(place, real.get(folder)));
      const found = inLine.inspect(target, access, await readTable(), isFree);
      if (found !== undefined) return found;
      return await lookAt(target, scope, (table) =>
        inspect(target, access, { forbidden: folders, published, real }, table),
      );
    },
    resolvePath: async (path, scope) => {
      checkPath(path);
      return inLine.locate(path, await readTable()) ?? (await lookAt(path, scope, (table) => locate(path, table)));
    },
    makeTarget: async (target, access, scope) => {
      if (isOwn(target, access) && isDone(() => mkdirSync(target))) return;
      checkPath(target);
      if (inLine.make(target, access, await readTable())) return;
      await lookAt(target, scope, () => make(target, access));
    },
    removeTarget: async (target, scope) => {
      if (isOwn(target, 'filesystem') && isDone(() => rmdirSync(target))) return;
      checkPath(target);
      const table = await readTable();
      // A mounted target stays, and accessing it could wait for its server.
      if (table.at(target) !== undefined || inLine.remove(target, table)) return;
      try {
        await lookAt(target, scope, () => remove(target));
      } catch (cause) {
        scope.signal.throwIfAborted();
        scope.log.info('target left in place', { target, why: String(cause) });
      }
    },
  };
}

function isDone(work: () => void): boolean {
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
  rules: Rules,
  table: MountTable,
): ReturnType<Mounter['inspectTarget']> {
  const { there, stats } = await resolved(target);
  await refuseSystem(there, rules);
  // `bind` checks whether the right thing is mounted there.
  if (table.at(there) !== undefined) return { target: there, existed: true };
  const found = stats === 'unknown' ? await unlessMissing(lstat(there)) : stats;
  if (found === undefined) return { target: there, existed: false };
  if (access === 'filesystem' ? !found.isDirectory() : !found.isFile()) throw wrongKind(target, access);
  if (access === 'filesystem' ? await holdsEntries(there) : found.size > 0) throw notEmpty(target, access);
  return { target: there, existed: true };
}

async function locate(path: string, table: MountTable): Promise<string | undefined> {
  const there = await located(path);
  // A mount point is no link, and accessing it could wait for its server.
  if (there === undefined || table.at(there) !== undefined) return there;
  return (await unlessMissing(realpath(there))) ?? there;
}

/** Resolves all symbolic links, including the target itself. At most the last component may be missing. */
async function resolved(
  target: string,
): Promise<{ readonly there: string; readonly stats: Stats | undefined | 'unknown' }> {
  const there = await located(target);
  if (there === undefined) {
    throw new StowageError(`${target} cannot be created: the folder ${dirname(target)} does not exist`, {
      code: 'not-found',
      reason: 'target-parent-missing',
      action: `Create the folder first: mkdir -p ${dirname(target)}`,
    });
  }
  const found = await unlessMissing(lstat(there)).catch((cause: unknown) => {
    // A mount whose server is gone: the mount table says what is there, and `bind` decides.
    if (isErrno(cause, 'ENOTCONN', 'EIO', 'ESTALE')) return 'unknown' as const;
    throw cause;
  });
  if (found === 'unknown' || found?.isSymbolicLink() !== true) return { there, stats: found };
  const beyond = await unlessMissing(realpath(there));
  if (beyond !== undefined) return { there: beyond, stats: 'unknown' };
  throw new StowageError(`${target} is a symbolic link to something that does not exist`, {
    code: 'conflict',
    reason: 'target-dangling',
    action: 'Remove the link, or give another path.',
  });
}

async function refuseSystem(there: string, { forbidden, published, real }: Rules): Promise<void> {
  if (isSystem(there)) {
    throw new StowageError(`${there} belongs to the system; a volume mounted there would hide it`, {
      code: 'invalid',
      reason: 'target-forbidden',
      action: 'Give a path of your own, for example /mnt/data.',
    });
  }
  if (dirname(there) === published) return;
  for (const folder of forbidden) {
    const found = await unlessMissing(realpath(folder));
    if (found === undefined) real.delete(folder);
    else real.set(folder, found);
    if (!isAtOrBelow(there, found ?? folder)) continue;
    throw new StowageError(`${there} is inside ${folder}, which is reserved for Stowage`, {
      code: 'invalid',
      reason: 'target-forbidden',
      action: 'Give a path outside the state folder and outside every store.',
    });
  }
}

/** Creates only the last component: a parent that was removed meanwhile is not created again. */
async function make(target: string, access: Access): Promise<void> {
  try {
    await using parent = await holdPath(dirname(target));
    const place = `${parent.through}/${basename(target)}`;
    if (access === 'filesystem') await mkdir(place);
    else await (await open(place, 'wx')).close();
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
async function remove(target: string): Promise<void> {
  await using parent = await unlessMissing(holdPath(dirname(target)));
  if (parent === undefined) return;
  const place = `${parent.through}/${basename(target)}`;
  const found = await unlessMissing(lstat(place));
  if (found?.isDirectory() === true) await unlessMissing(rmdir(place));
  else if (found?.isFile() === true && found.size === 0) await unlessMissing(unlink(place));
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
