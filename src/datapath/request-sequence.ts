import type { Request } from '#wire/fuse/operations.ts';
import type { AttributeCache } from './attribute-cache.ts';

/**
 * One call of an application becomes several requests: the kernel looks a name up, and asks for what the answer said already,
 * or opens the file. Which request was the last one tells what belongs together.
 */
export interface RequestSequence {
  /** A request comes. */
  begin(): void;
  /** The server was asked what a name means, and said it. */
  looked(id: number, request: Request): void;
  /** Whether it was so in the request just before, by the same thread, and what is known of it is from then. */
  wasJustLookedUp(id: number, request: Request): boolean;
}

const momentMs = 1;

export function createRequestSequence(attributes: Pick<AttributeCache, 'ageMs'>): RequestSequence {
  let now = 0;
  let last = { id: 0, pid: 0, turn: -1 };
  return {
    begin: () => {
      now++;
    },
    looked: (id, { pid }) => {
      last = { id, pid, turn: now };
    },
    wasJustLookedUp: (id, { pid }) =>
      last.id === id && last.turn === now - 1 && last.pid === pid && attributes.ageMs(id) <= momentMs,
  };
}
