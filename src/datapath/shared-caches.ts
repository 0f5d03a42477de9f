import { type CacheRoom, createCacheRoom } from './cache-limit.ts';
import { createReadMemory, type ReadMemory } from './read-buffers.ts';

/** Memory of the process that all its mounts share: how much of it there is does not grow with their number. */
export interface Shared {
  readonly reads: ReadMemory;
  readonly names: CacheRoom;
  readonly attributes: CacheRoom;
}

/** About 0.8 KB for each name and half a KB for each node. */
const mostNames = 100_000;
const mostNodes = 50_000;

export const createShared = (): Shared => ({
  ...{ reads: createReadMemory(), names: createCacheRoom(mostNames), attributes: createCacheRoom(mostNodes) },
});
