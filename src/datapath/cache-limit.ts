/** A common limit for the caches of all mounts. */
export interface CacheLimit {
  /** `dropSome`: drops part of the cache, least recently used first. */
  register(dropSome: () => void): CacheShare;
}

/** The entries of one cache. Dispose it with the cache. */
export interface CacheShare extends Disposable {
  readonly size: number;
  add(count: number): void;
}

interface Member {
  size: number;
  readonly dropSome: () => void;
}

/** The total exceeds `most` for at most one turn of the event loop; then the largest cache drops some entries. */
export function createCacheLimit(maxEntries: number): CacheLimit {
  const members = new Set<Member>();
  let total = 0;
  let isScheduled = false;

  /** Deferred, so that a caller can use the entries it just fetched. */
  function makeRoom(): void {
    isScheduled = false;
    while (total > maxEntries) {
      const before = total;
      [...members].reduce((one, other) => (other.size > one.size ? other : one)).dropSome();
      if (total >= before) return;
    }
  }

  function add(member: Member, count: number): void {
    // Calls in flight may still finish after their mount is gone.
    if (!members.has(member)) return;
    member.size += count;
    total += count;
    if (isScheduled || total <= maxEntries) return;
    isScheduled = true;
    setImmediate(makeRoom);
  }

  return {
    register: (dropSome) => {
      const member: Member = { size: 0, dropSome };
      members.add(member);
      return {
        get size() {
          return member.size;
        },
        add: (count) => add(member, count),
        [Symbol.dispose]: () => {
          add(member, -member.size);
          members.delete(member);
        },
      };
    },
  };
}
