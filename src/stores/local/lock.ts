import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { isJsonObject } from '#base/json.ts';
import { StowageError } from '#core/errors.ts';
import { lstatIfThere, readBounded } from './files.ts';

const sqliteBusy = 5;

/**
 * Allows one instance per local store. Node has no flock(2), so the lock is an open exclusive transaction of an empty SQLite database: the
 * kernel releases its fcntl locks even after kill -9, and SQLite excludes two connections of one process, which bare fcntl locks do not.
 * Nothing else may open this file: closing any descriptor of it in this process would release the lock.
 *
 * SQLite runs on the main thread, so call this only after the disk has just answered a write.
 */
export async function lockStore(lockFile: string, ownerFile: string, root: string): Promise<Disposable> {
  await refuseIrregular(lockFile);
  const database = new DatabaseSync(lockFile);
  try {
    // A journal in memory needs no file beside the lock, and no rollback.
    database.exec(
      'PRAGMA busy_timeout = 0; PRAGMA journal_mode = MEMORY; PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE',
    );
  } catch (cause) {
    database.close();
    if (isBusy(cause)) throw await storeLocked(root, ownerFile, cause);
    throw cause;
  }
  return { [Symbol.dispose]: () => database.close() };
}

function isBusy(thrown: unknown): boolean {
  return thrown instanceof Error && 'errcode' in thrown && thrown.errcode === sqliteBusy;
}

/** SQLite's errors do not give the reason. access(2) does, and opens no descriptor whose closing would release a lock. */
async function refuseIrregular(lockFile: string): Promise<void> {
  const stats = await lstatIfThere(lockFile);
  if (stats === undefined) return access(dirname(lockFile), constants.W_OK);
  if (stats.isFile()) return access(lockFile, constants.W_OK);
  throw new StowageError(`${lockFile} is not a plain file`, {
    code: 'conflict',
    reason: 'store-lock-irregular',
    action: `Remove ${lockFile}; Stowage recreates it.`,
  });
}

async function storeLocked(root: string, ownerFile: string, cause: unknown): Promise<StowageError> {
  return new StowageError(`the store in ${root} is in use by ${await describeHolder(ownerFile)}`, {
    code: 'conflict',
    reason: 'store-locked',
    action: 'Stop that instance first, or use another directory: only one instance can open a local store.',
    cause,
  });
}

async function describeHolder(ownerFile: string): Promise<string> {
  try {
    const owner: unknown = JSON.parse((await readBounded(ownerFile, 4096)).toString('utf8'));
    if (isJsonObject(owner))
      return `Stowage instance ${owner['instance']} (process ${owner['pid']} on ${owner['node']})`;
  } catch {
    // The holder is still starting, or the file is damaged.
  }
  return 'another Stowage';
}
