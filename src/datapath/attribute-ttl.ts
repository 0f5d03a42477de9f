import type { Clock } from '#base/clock.ts';
import type { Attributes } from '#wire/nfs3/structures.ts';

/** As in other NFS clients: an object that has not changed for long is unlikely to change now. */
const ttlAgeRatio = 0.1;
const maxTtlMs = 30_000;

/**
 * How long fresh attributes may be cached: at least `minMs`, longer the longer the object has been unchanged. 0: not
 * at all.
 */
export function createAttributeTtl(clock: Pick<Clock, 'elapsed'>, minMs: number): (attributes: Attributes) => number {
  /**
   * The latest change time seen from the server, and when it was seen. It is a lower bound of the server's clock, so
   * no object is considered older than it is. If that clock is set back, attributes are cached for too long, but never
   * longer than `maxMs`.
   */
  let latest = { ctimeMs: Number.NEGATIVE_INFINITY, at: 0 };

  /** Age of the last change by the server's clock. */
  function unchangedMs({ ctime, ctimeNs, mtime, mtimeNs }: Attributes): number {
    const now = clock.elapsed();
    const ctimeMs = ctime * 1000 + ctimeNs / 1e6;
    const serverMs = latest.ctimeMs + now - latest.at;
    if (ctimeMs > serverMs) latest = { ctimeMs, at: now };
    return Math.max(ctimeMs, serverMs) - Math.max(ctimeMs, mtime * 1000 + mtimeNs / 1e6);
  }

  return (attributes) => (minMs === 0 ? 0 : Math.max(minMs, Math.min(maxTtlMs, unchangedMs(attributes) * ttlAgeRatio)));
}
