import { type CacheLimit, createCacheLimit } from './cache-limit.ts';
import { createReadBuffers, type ReadBuffers } from './read-buffers.ts';

/** Memory that all mounts of the process share: its limit does not grow with their number. */
export interface SharedCaches {
  readonly readBuffers: ReadBuffers;
  readonly names: CacheLimit;
  readonly attributes: CacheLimit;
}

/** About 0.8 KB per name and 0.5 KB per node. */
const maxNames = 100_000;
const maxNodes = 50_000;

export const createSharedCaches = (): SharedCaches => ({
  readBuffers: createReadBuffers(),
  names: createCacheLimit(maxNames),
  attributes: createCacheLimit(maxNodes),
});
