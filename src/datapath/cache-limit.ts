/** A common limit for the caches of all mounts. */
export interface CacheLimit {
  /** `dropSome`: drops part of the cache, least recently used first. */
  join(dropSome: () => void): CacheShare;
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
export function createCacheLimit(most: number): CacheLimit {
  const members = new Set<Member>();
  let total = 0;
  let isAsked = false;

  /** Deferred, so that a caller can use the entries it just fetched. */
  function makeRoom(): void {
    isAsked = false;
    while (total > most) {
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
    if (isAsked || total <= most) return;
    isAsked = true;
    setImmediate(makeRoom);
  }

  return {
    join: (dropSome) => {
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
