import type { Clock } from '#base/clock.ts';
import type { Attributes } from '#wire/nfs3/index.ts';

/** A longer pause between two looks, of ours or of a server that stood still, begins the steady time anew. */
const longestGapMs = 2_000;
const mostWatched = 10_000;

export interface Patience {
  /** So long it must not have changed, */
  readonly afterMs: number;
  /** and for so long, at the end of that, we must have looked again and again. */
  readonly steadyMs: number;
}

/** Files of other hosts that do not change, though the server answers: their hosts are dead. By our own clock alone. */
export interface Watch {
  /** Also looks: `found` is what the file is now. */
  isDead(path: string, found: Attributes, patience: Patience): boolean;
  forget(path: string): void;
}

interface Watched {
  readonly seen: string;
  readonly since: number;
  readonly steadySince: number;
  readonly last: number;
}

export function createWatch(clock: Clock): Watch {
  const watched = new Map<string, Watched>();
  return {
    isDead: (path, found, { afterMs, steadyMs }) => {
      const seen = `${found.fileId} ${found.ctime} ${found.ctimeNs} ${found.mtime} ${found.mtimeNs} ${found.size}`;
      const now = clock.elapsed();
      const before = watched.get(path);
      const isSame = before?.seen === seen;
      if (!isSame && watched.size >= mostWatched) watched.clear();
      const since = isSame ? before.since : now;
      const steadySince = isSame && now - before.last <= longestGapMs ? before.steadySince : now;
      watched.set(path, { seen, since, steadySince, last: now });
      return now - since > afterMs && now - steadySince > steadyMs;
    },
    forget: (path) => void watched.delete(path),
  };
}
