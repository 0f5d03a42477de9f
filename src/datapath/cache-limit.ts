/** How much the caches of all mounts may hold together. */
export interface CacheLimit {
  /** `dropSome`: gives back a part of what the cache holds, what was not used for longest first. */
  join(dropSome: () => void): CacheShare;
}

/** What one of them holds. Disposed of with its cache. */
export interface CacheShare extends Disposable {
  readonly size: number;
  add(count: number): void;
}

interface Member {
  size: number;
  readonly dropSome: () => void;
}

/** More than `most` for no longer than a turn of the event loop: then whoever has most gives some back. */
export function createCacheLimit(most: number): CacheLimit {
  const members = new Set<Member>();
  let total = 0;
  let isAsked = false;

  /** Not at once: what a call has just brought is used by whoever waits for it before anything is dropped. */
  function makeRoom(): void {
    isAsked = false;
    while (total > most) {
      const before = total;
      [...members].reduce((one, other) => (other.size > one.size ? other : one)).dropSome();
      if (total >= before) return;
    }
  }

  function add(member: Member, count: number): void {
    // What is under way when a mount goes comes to its end all the same.
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
