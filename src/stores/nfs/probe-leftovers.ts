import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import {
  type Attributes,
  type FileHandle,
  fileType,
  listDirectory,
  type NfsClient,
  readFully,
} from '#wire/nfs3/index.ts';
import { isProbeName, type ProbeLimits, probeText } from './probe.ts';

/** A directory in which a check has just created and removed a file. */
export interface CheckedDirectory {
  readonly nfs: NfsClient;
  readonly root: FileHandle;
  /** The current time in seconds, by the server's clock. */
  readonly now: number;
}

/**
 * Removes the files of checks whose process was killed. `about` identifies the directory and the options. Never throws: a later check
 * finds what this one cannot remove.
 */
export type RemoveLeftovers = (key: string, checked: CheckedDirectory, limits: ProbeLimits, log: Log) => Promise<void>;

/**
 * A check takes seconds, so an older file belongs to no running check on any host. Also limits how often the directory, which may be
 * large, is listed.
 */
const leftoverAfterMs = 10 * 60_000;
/** Part of the time limit of a check. */
const maxCleanupMs = 2_000;

export function createRemoveLeftovers(clock: Clock): RemoveLeftovers {
  /** The time of the last listing of each directory. */
  const listedAt = new Map<string, number>();

  function isDue(key: string): boolean {
    const now = clock.elapsed();
    for (const [one, at] of listedAt) if (now - at >= leftoverAfterMs) listedAt.delete(one);
    if (listedAt.has(key)) return false;
    listedAt.set(key, now);
    return true;
  }

  return async (key, checked, { signal, deadlineMs }, log) => {
    if (!isDue(key)) return;
    using limit = clock.deadline(maxCleanupMs, signal);
    const limits = { signal: limit.signal, deadlineMs: Math.min(deadlineMs, maxCleanupMs) };
    const logFailure = (cause: unknown): void =>
      log.debug('a file that a check may have left was not removed', { cause: String(cause) });
    try {
      for await (const page of listDirectory(checked.nfs, checked.root, { ...limits, namesOnly: true }))
        for (const { name } of page)
          if (isProbeName(name)) await removeIfOld(checked, name, limits, log).catch(logFailure);
    } catch (cause) {
      logFailure(cause);
    }
  };
}

async function removeIfOld(
  { nfs, root, now }: CheckedDirectory,
  name: string,
  limits: ProbeLimits,
  log: Log,
): Promise<void> {
  const found = await nfs.lookup(root, name, limits);
  const attributes = found.attributes ?? (await nfs.getattr(found.handle, limits));
  if ((now - attributes.mtime) * 1000 < leftoverAfterMs || !(await isProbe(nfs, found.handle, attributes, limits)))
    return;
  await nfs.remove(root, name, limits);
  log.info('removed a file that an interrupted check had left', { name });
}

/** Whether a check made the file. A check that was killed before it wrote anything leaves an empty file. */
async function isProbe(
  nfs: NfsClient,
  file: FileHandle,
  { type, size }: Attributes,
  limits: ProbeLimits,
): Promise<boolean> {
  if (type !== fileType.regular || size > probeText.length) return false;
  const text = Buffer.alloc(size);
  await readFully(nfs, file, 0, text, limits);
  return size === 0 || text.equals(probeText);
}
