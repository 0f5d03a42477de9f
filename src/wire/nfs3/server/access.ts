import type { BigIntStats } from 'node:fs';
import { accessRight } from '../procedures.ts';
import type { SetAttributes } from '../structures.ts';
import type { Credentials } from './identities.ts';
import { refuse } from './refusal.ts';

/** Bits of a mode, for one of owner, group and others. */
export const permission = { read: 4, write: 2, execute: 1 } as const;

const sticky = 0o1000;
const setGid = 0o2000;
const setUid = 0o4000;
const groupExecute = 0o010;

const isInGroup = (who: Credentials, gid: number): boolean => who.gid === gid || who.groups.includes(gid);

/**
 * Whether the mode allows it. Lists of access rights beyond the mode are the system's own, and it asks them only for the
 * user that the server runs as.
 */
export function hasPermission(stats: BigIntStats, who: Credentials, want: number): boolean {
  const mode = Number(stats.mode);
  // Root may do everything, but run only what somebody may run.
  if (who.isRoot) return (want & permission.execute) === 0 || stats.isDirectory() || (mode & 0o111) !== 0;
  const shift = Number(stats.uid) === who.uid ? 6 : isInGroup(who, Number(stats.gid)) ? 3 : 0;
  return ((mode >> shift) & want) === want;
}

export function requirePermission(stats: BigIntStats, who: Credentials, want: number): void {
  if (!hasPermission(stats, who, want)) refuse('ACCES');
}

const isOwnedBy = (stats: BigIntStats, who: Credentials): boolean => who.isRoot || Number(stats.uid) === who.uid;

/**
 * For data: the client has checked when the file was opened, and its mode may have changed since. The owner could change
 * it back, so is never refused; and who may run a file must be able to load it.
 */
export function requireDataPermission(stats: BigIntStats, who: Credentials, want: number): void {
  if (isOwnedBy(stats, who) || hasPermission(stats, who, want)) return;
  if (want === permission.read && hasPermission(stats, who, permission.execute)) return;
  refuse('ACCES');
}

/** A name is to be made or taken away in a directory. */
export function requireDirectoryWrite(directory: BigIntStats, who: Credentials): void {
  requirePermission(directory, who, permission.write | permission.execute);
}

/** In a sticky directory only owners take away. */
export function requireRemoval(directory: BigIntStats, what: BigIntStats, who: Credentials): void {
  requireDirectoryWrite(directory, who);
  if ((Number(directory.mode) & sticky) === 0 || isOwnedBy(directory, who) || isOwnedBy(what, who)) return;
  refuse('ACCES');
}

/** What of ACCESS is granted: the same checks as will be made later. */
export function grantedAccess(stats: BigIntStats, who: Credentials, mask: number, isReadOnly: boolean): number {
  const { read, lookup, modify, extend, delete: remove, execute } = accessRight;
  const isDirectory = stats.isDirectory();
  let rights = hasPermission(stats, who, permission.read) ? read : 0;
  if (hasPermission(stats, who, permission.execute)) rights |= isDirectory ? lookup : execute;
  if (!isReadOnly && hasPermission(stats, who, isDirectory ? permission.write | permission.execute : permission.write))
    rights |= modify | extend | (isDirectory ? remove : 0);
  return rights & mask;
}

/** Whether the attributes may be set. */
export function requireSetattr(stats: BigIntStats, set: SetAttributes, who: Credentials): void {
  if (set.size !== undefined) requireDataPermission(stats, who, permission.write);
  if (who.isRoot) return;
  const isOwner = isOwnedBy(stats, who);
  const changesOwner = set.uid !== undefined && set.uid !== Number(stats.uid);
  const changesGroup = set.gid !== undefined && set.gid !== Number(stats.gid);
  if (set.mode !== undefined && !isOwner) refuse('PERM');
  if (changesOwner) refuse('PERM');
  if (changesGroup && !(isOwner && isInGroup(who, set.gid as number))) refuse('PERM');
  const isExact = typeof set.atime === 'object' || typeof set.mtime === 'object';
  if (isExact && !isOwner) refuse('PERM');
  const isTouched = set.atime !== undefined || set.mtime !== undefined;
  if (isTouched && !isOwner) requirePermission(stats, who, permission.write);
}

/** A mode that somebody may give: who is not in a file's group cannot lend it. */
export function allowedMode(mode: number, gid: number, isDirectory: boolean, who: Credentials): number {
  const wanted = mode & 0o7777;
  return who.isRoot || isDirectory || isInGroup(who, gid) ? wanted : wanted & ~setGid;
}

/**
 * What a file's mode becomes when somebody writes to it: one that runs as its owner must not do so with another's
 * content. The system does this for ordinary users; the server may be root. Undefined: it stays.
 */
export function modeAfterWrite(stats: BigIntStats, who: Credentials): number | undefined {
  const mode = Number(stats.mode) & 0o7777;
  if (who.isRoot || (mode & (setUid | setGid)) === 0) return undefined;
  const kept = (mode & groupExecute) === 0 ? mode & ~setUid : mode & ~(setUid | setGid);
  return kept === mode ? undefined : kept;
}

/** The group of something new: the caller's, or the directory's where that says so. */
export const groupForNew = (directory: BigIntStats, who: Credentials): number =>
  (Number(directory.mode) & setGid) === 0 ? who.gid : Number(directory.gid);

/** A new directory in one that passes on its group passes it on, too. */
export const directoryModeIn = (directory: BigIntStats, mode: number): number =>
  mode | (Number(directory.mode) & setGid);
