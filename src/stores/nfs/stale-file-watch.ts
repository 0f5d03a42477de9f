import type { Clock } from '#base/clock.ts';
import type { Attributes } from '#wire/nfs3/index.ts';

/** A longer gap between two polls, caused by us or by a stalled server, resets the steady time. */
const maxGapMs = 2_000;
const maxWatchedFiles = 10_000;

export interface StaleAfter {
  /** The file must be unchanged for this long, */
  readonly afterMs: number;
  /** and we must have polled it without a gap for the last part of that time. */
  readonly steadyMs: number;
}

/** Finds files of dead hosts: they do not change while the server answers. Uses only our own clock. */
export interface StaleFileWatch {
  /** Counts as a poll. `found`: the file's current attributes. */
  isDead(path: string, found: Attributes, policy: StaleAfter): boolean;
  /** Like `isDead`, without the requirement of steady polls: for polls that are far apart. */
  isUnchanged(path: string, found: Attributes, afterMs: number): boolean;
  forget(path: string): void;
}

interface WatchedFile {
  readonly fingerprint: string;
  readonly since: number;
  readonly steadySince: number;
  readonly polledAt: number;
}

export function createStaleFileWatch(clock: Clock): StaleFileWatch {
  const watched = new Map<string, WatchedFile>();

  function poll(path: string, found: Attributes): { readonly unchangedMs: number; readonly steadyMs: number } {
    const fingerprint = `${found.fileId} ${found.ctime} ${found.ctimeNs} ${found.mtime} ${found.mtimeNs} ${found.size}`;
    const now = clock.elapsed();
    const before = watched.get(path);
    const isSame = before?.fingerprint === fingerprint;
    if (!isSame && watched.size >= maxWatchedFiles) watched.clear();
    const since = isSame ? before.since : now;
    const steadySince = isSame && now - before.polledAt <= maxGapMs ? before.steadySince : now;
    watched.set(path, { fingerprint, since, steadySince, polledAt: now });
    return { unchangedMs: now - since, steadyMs: now - steadySince };
  }

  return {
    isDead: (path, found, policy) => {
      const { unchangedMs, steadyMs } = poll(path, found);
      return unchangedMs > policy.afterMs && steadyMs > policy.steadyMs;
    },
    isUnchanged: (path, found, afterMs) => poll(path, found).unchangedMs > afterMs,
    forget: (path) => void watched.delete(path),
  };
}
