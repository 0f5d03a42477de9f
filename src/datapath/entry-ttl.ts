import type { Context } from './context.ts';
import type { Name } from './name-cache.ts';

/** How long the kernel may keep a name. */
export interface EntryTtl {
  /** Longer if the directory has not changed for long. */
  remainingMs(parent: number, name: Name): number;
  /** A cached name means that no other client changed the directory up to the time of its attributes. */
  cachedMs(parent: number, name: Name): number;
}

/** Two changes of a directory within a few ms may have the same ctime, so names expire after this. */
const maxMs = 30_000;
export function createEntryTtl({
  attributes,
  clock,
  ttlMs,
}: Pick<Context, 'attributes' | 'clock' | 'ttlMs'>): EntryTtl {
  const remainingMs = (parent: number, { at }: Name): number =>
    Math.max(0, at + attributes.ttlOf(parent) - clock.elapsed());

  function cachedMs(parent: number, name: Name): number {
    const now = clock.elapsed();
    // Negative entries expire soon: the kernel does not hear about changes by other clients.
    if (name.meant === undefined) return Math.max(0, name.at + ttlMs - now);
    return Math.max(remainingMs(parent, name), Math.min(attributes.freshMs(parent), name.at + maxMs - now));
  }

  return { remainingMs, cachedMs };
}
