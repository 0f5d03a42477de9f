import type { BigIntStats } from 'node:fs';
import { accessRight } from '../procedures.ts';
import type { SetAttributes } from '../structures.ts';
import type { Credentials } from './identities.ts';
import { refuse } from './refusal.ts';

/** The permission bits of a mode, for one of owner, group and others. */
export const permission = { read: 4, write: 2, execute: 1 } as const;

const sticky = 0o1000;
const setGid = 0o2000;
const setUid = 0o4000;
const groupExecute = 0o010;

const isInGroup = (who: Credentials, gid: number): boolean => who.gid === gid || who.groups.includes(gid);

/**
 * Whether the mode grants the permission. ACLs are not evaluated: the kernel checks them only for the user that the server runs
 * as.
 */
export function hasPermission(stats: BigIntStats, who: Credentials, want: number): boolean {
  const mode = Number(stats.mode);
  // Root has all permissions, except that it may execute only files with an execute bit.
  if (who.isRoot) return (want & permission.execute) === 0 || stats.isDirectory() || (mode & 0o111) !== 0;
  const shift = Number(stats.uid) === who.uid ? 6 : isInGroup(who, Number(stats.gid)) ? 3 : 0;
  return ((mode >> shift) & want) === want;
}

export function requirePermission(stats: BigIntStats, who: Credentials, want: number): void {
  if (!hasPermission(stats, who, want)) refuse('ACCES');
}

const isOwnedBy = (stats: BigIntStats, who: Credentials): boolean => who.isRoot || Number(stats.uid) === who.uid;

/**
 * Checks access to data. The client checked the permission at open, and the mode may have changed since. The owner is always
 * allowed, since the owner could change the mode back. A caller that may execute a file may read it, in order to load it.
 */
export function requireDataPermission(stats: BigIntStats, who: Credentials, want: number): void {
  if (isOwnedBy(stats, who) || hasPermission(stats, who, want)) return;
  if (want === permission.read && hasPermission(stats, who, permission.execute)) return;
  refuse('ACCES');
}

/** Requires permission to create or remove a name in a directory. */
export function requireDirectoryWrite(directory: BigIntStats, who: Credentials): void {
  requirePermission(directory, who, permission.write | permission.execute);
}

/** Requires permission to remove a name. In a sticky directory only the owner of the directory or of the object may. */
export function requireRemoval(directory: BigIntStats, object: BigIntStats, who: Credentials): void {
  requireDirectoryWrite(directory, who);
  if ((Number(directory.mode) & sticky) === 0 || isOwnedBy(directory, who) || isOwnedBy(object, who)) return;
  refuse('ACCES');
}

/** The rights that ACCESS grants: the same checks as for the actual operation. */
export function grantedAccess(stats: BigIntStats, who: Credentials, mask: number, isReadOnly: boolean): number {
  const { read, lookup, modify, extend, delete: remove, execute } = accessRight;
  const isDirectory = stats.isDirectory();
  let rights = hasPermission(stats, who, permission.read) ? read : 0;
  if (hasPermission(stats, who, permission.execute)) rights |= isDirectory ? lookup : execute;
  if (!isReadOnly && hasPermission(stats, who, isDirectory ? permission.write | permission.execute : permission.write))
    rights |= modify | extend | (isDirectory ? remove : 0);
  return rights & mask;
}

/** Requires permission to set the attributes. */
export function requireSetattr(stats: BigIntStats, set: SetAttributes, who: Credentials): void {
  if (set.size !== undefined) requireDataPermission(stats, who, permission.write);
  if (who.isRoot) return;
  const isOwner = isOwnedBy(stats, who);
  const changesOwner = set.uid !== undefined && set.uid !== Number(stats.uid);
  const changesGroup = set.gid !== undefined && set.gid !== Number(stats.gid);
  if (set.mode !== undefined && !isOwner) refuse('PERM');
  if (changesOwner) refuse('PERM');
  if (changesGroup && !(isOwner && isInGroup(who, set.gid as number))) refuse('PERM');
  const setsExactTime = typeof set.atime === 'object' || typeof set.mtime === 'object';
  if (setsExactTime && !isOwner) refuse('PERM');
  const setsTime = set.atime !== undefined || set.mtime !== undefined;
  if (setsTime && !isOwner) requirePermission(stats, who, permission.write);
}

/** The mode that a caller may set: a caller outside the file's group cannot set the set-group-id bit. */
export function allowedMode(mode: number, gid: number, isDirectory: boolean, who: Credentials): number {
  const requestedMode = mode & 0o7777;
  return who.isRoot || isDirectory || isInGroup(who, gid) ? requestedMode : requestedMode & ~setGid;
}

/**
 * The mode after a write: another user's content must not run with set-user-id or set-group-id. The kernel clears these bits for
 * ordinary users, but the server may run as root. Undefined: no change.
 */
export function modeAfterWrite(stats: BigIntStats, who: Credentials): number | undefined {
  const mode = Number(stats.mode) & 0o7777;
  if (who.isRoot || (mode & (setUid | setGid)) === 0) return undefined;
  const newMode = (mode & groupExecute) === 0 ? mode & ~setUid : mode & ~(setUid | setGid);
  return newMode === mode ? undefined : newMode;
}

/** The group of a new object: the caller's, or the directory's if the directory is set-group-id. */
export const groupForNew = (directory: BigIntStats, who: Credentials): number =>
  (Number(directory.mode) & setGid) === 0 ? who.gid : Number(directory.gid);

/** A new directory inherits the set-group-id bit. */
export const directoryModeIn = (directory: BigIntStats, mode: number): number =>
  mode | (Number(directory.mode) & setGid);
