import type { Clock } from '#base/clock.ts';
import type { Attributes } from '#wire/nfs3/structures.ts';

/** As other NFS clients do: what has not changed for long will not change now. */
const agePart = 0.1;
const longestMs = 30_000;

/**
 * For how long attributes that came just now are relied on: at least for `leastMs`, and the longer the longer nobody has
 * changed what they are of. 0: not at all.
 */
export function createAttributeTtl(clock: Pick<Clock, 'elapsed'>, leastMs: number): (attributes: Attributes) => number {
  /**
   * The latest time of a change that the server has told, and when. Its clock is not ours: it says at least this, so nothing
   * is taken to be older than it is. If it is set back, things are relied on for too long, but never longer than `longestMs`.
   */
  let latest = { ctimeMs: Number.NEGATIVE_INFINITY, at: 0 };

  /** By the server's clock. */
  function unchangedMs({ ctime, ctimeNs, mtime, mtimeNs }: Attributes): number {
    const now = clock.elapsed();
    const ctimeMs = ctime * 1000 + ctimeNs / 1e6;
    const serverMs = latest.ctimeMs + now - latest.at;
    if (ctimeMs > serverMs) latest = { ctimeMs, at: now };
    return Math.max(ctimeMs, serverMs) - Math.max(ctimeMs, mtime * 1000 + mtimeNs / 1e6);
  }

  return (attributes) =>
    leastMs === 0 ? 0 : Math.max(leastMs, Math.min(longestMs, unchangedMs(attributes) * agePart));
}
