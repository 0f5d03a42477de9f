import type { Request } from '#wire/fuse/operations.ts';
import type { AttributeCache } from './attribute-cache.ts';

/**
 * One system call becomes several requests: the kernel looks a name up, then asks for attributes that the answer
 * already had, or opens the file. The order of requests tells which ones belong together.
 */
export interface RequestSequence {
  /** A new request starts. */
  startRequest(): void;
  /** A lookup on the server has just returned this node. */
  recordLookup(id: number, request: Request): void;
  /** Whether the previous request, by the same thread, looked this node up, and its attributes are from that lookup. */
  wasJustLookedUp(id: number, request: Request): boolean;
}

const maxLookupAgeMs = 1;

export function createRequestSequence(attributes: Pick<AttributeCache, 'ageMs'>): RequestSequence {
  let requestCount = 0;
  let last = { id: 0, pid: 0, turn: -1 };
  return {
    startRequest: () => {
      requestCount++;
    },
    recordLookup: (id, { pid }) => {
      last = { id, pid, turn: requestCount };
    },
    wasJustLookedUp: (id, { pid }) =>
      last.id === id && last.turn === requestCount - 1 && last.pid === pid && attributes.ageMs(id) <= maxLookupAgeMs,
  };
}
