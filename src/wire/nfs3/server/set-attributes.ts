import { type BigIntStats, chmodSync, chownSync, truncateSync, utimesSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import type { SetAttributes, Time } from '../structures.ts';
import { allowedMode, modeAfterWrite, requireSetattr } from './access.ts';
import type { Export } from './export.ts';
import type { Credentials } from './identities.ts';
import { refuse } from './refusal.ts';
import { toUtimesSeconds } from './time-rounding.ts';

/** (uid_t)-1 means "do not change" to chown(2). */
const unchangedId = 0xffff_ffff;
const nanosecondsPerSecond = 1_000_000_000;

/** Maps the owner and group that a client sets to this machine's numbers. */
export function localAttributes({ identities }: Export, set: SetAttributes): SetAttributes {
  for (const time of [set.atime, set.mtime])
    if (typeof time === 'object' && time.nanoseconds >= nanosecondsPerSecond) refuse('INVAL');
  const { uid, gid } = set;
  if (uid === undefined && gid === undefined) return set;
  const local = {
    ...set,
    uid: uid === undefined ? undefined : identities.toLocalUid(uid),
    gid: gid === undefined ? undefined : identities.toLocalGid(gid),
  };
  if (local.uid === unchangedId || local.gid === unchangedId) refuse('INVAL');
  return local;
}

/** `own` is a path that refers to this file even if it is renamed. */
export function setAttributes(own: string, stats: BigIntStats, set: SetAttributes, who: Credentials): void {
  if (set.size !== undefined && stats.isDirectory()) refuse('ISDIR');
  if (set.size !== undefined && !stats.isFile()) refuse('INVAL');
  requireSetattr(stats, set, who);
  if (set.size !== undefined) truncateSync(own, set.size);
  const uid = set.uid ?? Number(stats.uid);
  const gid = set.gid ?? Number(stats.gid);
  if (uid !== Number(stats.uid) || gid !== Number(stats.gid)) chownSync(own, uid, gid);
  const mode = modeToSet(stats, set, gid, who);
  // Symbolic links have no mode.
  if (mode !== undefined && !stats.isSymbolicLink()) chmodSync(own, mode);
  setTimes(own, stats, set);
}

function modeToSet(stats: BigIntStats, set: SetAttributes, gid: number, who: Credentials): number | undefined {
  if (set.mode !== undefined) return allowedMode(set.mode, gid, stats.isDirectory(), who);
  return set.size === undefined ? undefined : modeAfterWrite(stats, who);
}

/** Node passes NaN through, and libuv (1.51) treats it as UTIME_OMIT. */
const omittedTime = new Date(Number.NaN);

export function setTimes(own: string, stats: BigIntStats, { atime, mtime }: SetAttributes): void {
  if (atime === undefined && mtime === undefined) return;
  const now = Date.now() / 1000;
  const toUtimes = (time: Time | 'now' | undefined, otherwise: number | Date): number | Date =>
    time === undefined ? otherwise : time === 'now' ? now : toUtimesSeconds(time);
  try {
    utimesSync(own, toUtimes(atime, omittedTime), toUtimes(mtime, omittedTime));
  } catch (cause) {
    if (!isErrno(cause, 'EINVAL')) throw cause;
    utimesSync(own, toUtimes(atime, Number(stats.atimeNs) / 1e9), toUtimes(mtime, Number(stats.mtimeNs) / 1e9));
  }
}
