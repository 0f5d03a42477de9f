import type { MountContext } from './mount-context.ts';
import type { CachedName } from './name-cache.ts';

/** How long the kernel may keep a name. */
export interface EntryTtl {
  /** Longer if the directory has not changed for long. */
  remainingMs(parent: number, name: CachedName): number;
  /** A cached name means that no other client changed the directory up to the time of its attributes. */
  cachedMs(parent: number, name: CachedName): number;
}

/** Two changes of a directory within a few ms may have the same ctime, so names expire after this. */
const maxEntryTtlMs = 30_000;
export function createEntryTtl({
  attributes,
  clock,
  ttlMs,
}: Pick<MountContext, 'attributes' | 'clock' | 'ttlMs'>): EntryTtl {
  const remainingMs = (parent: number, { at }: CachedName): number =>
    Math.max(0, at + attributes.ttlOf(parent) - clock.elapsed());

  function cachedMs(parent: number, name: CachedName): number {
    const now = clock.elapsed();
    // Negative entries expire soon: the kernel does not hear about changes by other clients.
    if (name.target === undefined) return Math.max(0, name.at + ttlMs - now);
    return Math.max(remainingMs(parent, name), Math.min(attributes.freshMs(parent), name.at + maxEntryTtlMs - now));
  }

  return { remainingMs, cachedMs };
}
