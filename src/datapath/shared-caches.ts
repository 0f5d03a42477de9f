import { type CacheLimit, createCacheLimit } from './cache-limit.ts';
import { createReadBuffers, type ReadBuffers } from './read-buffers.ts';

/** Memory of the process that all its mounts share: how much of it there is does not grow with their number. */
export interface Shared {
  readonly reads: ReadBuffers;
  readonly names: CacheLimit;
  readonly attributes: CacheLimit;
}

/** About 0.8 KB for each name and half a KB for each node. */
const mostNames = 100_000;
const mostNodes = 50_000;

export const createSharedCaches = (): Shared => ({
  ...{ reads: createReadBuffers(), names: createCacheLimit(mostNames), attributes: createCacheLimit(mostNodes) },
});
