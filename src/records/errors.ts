import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { errnoOf } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';

/** Names the process that has the state folder, since the lock itself cannot tell. */
export const holderFile = (database: string): string => join(dirname(database), 'holder.json');

/** SQLite's primary result codes (the low byte of the extended ones), and errnos of system calls before SQLite opens the file. */
const kindByCode: Readonly<Record<string | number, 'locked' | 'denied' | 'read-only' | 'full' | 'corrupt' | 'io'>> = {
  3: 'denied',
  5: 'locked',
  8: 'read-only',
  10: 'io',
  11: 'corrupt',
  13: 'full',
  14: 'denied',
  15: 'locked',
  26: 'corrupt',
  EACCES: 'denied',
  EPERM: 'denied',
  ENOTDIR: 'denied',
  EEXIST: 'denied',
  EISDIR: 'denied',
  EROFS: 'read-only',
  ENOSPC: 'full',
  EDQUOT: 'full',
  EIO: 'io',
};

function kindOf(cause: unknown): (typeof kindByCode)[string] | undefined {
  if (!(cause instanceof Error)) return undefined;
  if ('errcode' in cause && typeof cause.errcode === 'number') return kindByCode[cause.errcode & 0xff];
  return kindByCode[errnoOf(cause) ?? ''];
}

/** The only place that translates SQLite's errors. Errors that do not concern the file are bugs, and are returned unchanged. */
export function stateError(cause: unknown, database: string): unknown {
  const folder = dirname(database);
  switch (kindOf(cause)) {
    case 'locked':
      return lockedError(database, cause);
    case 'denied':
      return new StowageError(`the state folder ${folder} cannot be used: Stowage may not open ${database}`, {
        code: 'denied',
        reason: 'state-denied',
        action: `Give the user that runs Stowage read and write access to ${folder}, or choose another with --state DIR.`,
        cause,
      });
    case 'read-only':
      return new StowageError(`the state folder ${folder} is read-only`, {
        code: 'denied',
        reason: 'state-read-only',
        action: `Make ${folder} writable (is its file system mounted read-only?), or choose another with --state DIR.`,
        cause,
      });
    case 'full':
      return new StowageError(`the disk that holds the state folder ${folder} is full`, {
        code: 'exhausted',
        reason: 'state-full',
        action: `Free some space (df -h ${folder}) and repeat the request; no part of it was done.`,
        cause,
      });
    case 'corrupt':
      return corruptError(database, cause);
    case 'io':
      return new StowageError(`the disk that holds ${database} failed to read or write`, {
        code: 'unavailable',
        reason: 'state-io',
        action: 'Look at the kernel log (dmesg) for errors of that disk, then restart Stowage.',
        cause,
      });
    default:
      return cause;
  }
}

export function corruptError(database: string, cause: unknown): StowageError {
  return new StowageError(`${database} is damaged, or is not a database of Stowage`, {
    code: 'internal',
    reason: 'state-corrupt',
    action:
      `Restore it from a backup, or move it aside and start again: volumes are recorded on the stores themselves and ` +
      `come back with 'stowage store adopt'; recreate the stores and tokens that were created through the API.`,
    cause,
  });
}

export function newerError(database: string, found: number, known: number): StowageError {
  return new StowageError(
    `${database} was written by a newer Stowage (format ${found}; this program knows up to ${known})`,
    {
      code: 'unsupported',
      reason: 'state-newer',
      action: 'Start the newer Stowage again, or choose another state folder with --state DIR.',
    },
  );
}

function lockedError(database: string, cause: unknown): StowageError {
  const folder = dirname(database);
  const pid = readHolderPid(database);
  return new StowageError(
    `the state folder ${folder} is in use by another Stowage${pid === undefined ? '' : ` (process ${pid})`}`,
    {
      code: 'conflict',
      reason: 'state-locked',
      action: `Use the one that runs, stop it${pid === undefined ? '' : ` (kill ${pid})`}, or choose another folder with --state DIR.`,
      cause,
    },
  );
}

function readHolderPid(database: string): number | undefined {
  try {
    const parsed: unknown = JSON.parse(readFileSync(holderFile(database), 'utf8'));
    if (typeof parsed === 'object' && parsed !== null && 'pid' in parsed && Number.isSafeInteger(parsed.pid))
      return Number(parsed.pid);
  } catch {
    // Only a hint for people: the holder may not have written it yet, and older versions never do.
  }
  return undefined;
}
