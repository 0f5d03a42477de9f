import type { Clock } from '#base/clock.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CacheLimit } from './cache-limit.ts';

/** The object of a name; fields that a server left out are undefined. */
export interface NameTarget {
  readonly handle: FileHandle | undefined;
  readonly attributes: Attributes | undefined;
}

export interface CachedName {
  /** Undefined: the name is absent. */
  readonly target: NameTarget | undefined;
  /** When the name was requested or received, by the clock and by the attribute cache's event number. */
  readonly at: number;
  readonly eventNumber: number;
}

/** Names in directories. A directory's names are cached until another client changes it. */
export interface NameCache extends Disposable {
  get(directory: number, key: string): CachedName | undefined;
  /**
   * Read this before a call and pass it with the result. If this client changed the directory meanwhile, `put` ignores
   * it.
   */
  changeCount(directory: number): number;
  put(directory: number, key: string, name: CachedName, changes: number): void;
  /** Records a change made by this client. */
  recordOwnChange(directory: number, key: string, name: CachedName): void;
  drop(directory: number, key: string): void;
  /** Records that all names of the directory are cached, if it has not changed since `changes` was read. */
  markComplete(directory: number, changes: number): void;
  /** Whether a name that is not cached does not exist on the server. */
  isComplete(directory: number): boolean;
  forget(directory: number): void;
}

interface DirectoryNames {
  epoch: number;
  changes: number;
  readonly names: Map<string, CachedName>;
  /** Until this time, a name that is not cached does not exist on the server. */
  completeUntil: number;
}

/** Fraction of the cache to drop when the limit is exceeded. */
const dropRatio = 0.1;
/**
 * Changes by other clients are detected by ctime, and on old systems two changes within 4 ms have the same one. So a
 * directory counts as completely known for this long only.
 */
const maxCompleteMs = 5_000;

export const keyOf = (name: Buffer): string => name.toString('latin1');

export interface NameCacheParts {
  readonly epochOf: (directory: number) => number;
  readonly clock: Pick<Clock, 'elapsed'>;
  readonly limit: CacheLimit;
}

export function createNameCache({ epochOf, clock, limit }: NameCacheParts): NameCache {
  /** Least recently used first. */
  const directories = new Map<number, DirectoryNames>();
  const share = limit.register(dropSome);

  function namesOf(id: number): DirectoryNames {
    const epoch = epochOf(id);
    const content = directories.get(id);
    if (content === undefined) {
      const made: DirectoryNames = { epoch, changes: 0, names: new Map(), completeUntil: 0 };
      directories.set(id, made);
      return made;
    }
    if (content.epoch !== epoch) {
      content.epoch = epoch;
      clear(content);
    }
    return content;
  }

  function clear(content: DirectoryNames): void {
    share.add(-content.names.size);
    content.names.clear();
    content.completeUntil = 0;
    // A listing in progress is no longer complete.
    content.changes++;
  }

  /** Drops names but keeps the directories: a change in flight needs their change count. */
  function dropSome(): void {
    const targetSize = share.size * (1 - dropRatio);
    for (const content of directories.values()) {
      if (share.size <= targetSize) return;
      if (content.names.size > 0) clear(content);
    }
  }

  function storeName(content: DirectoryNames, id: number, key: string, name: CachedName): void {
    const { size } = content.names;
    content.names.set(key, name);
    share.add(content.names.size - size);
    if (size > 0) return;
    directories.delete(id);
    directories.set(id, content);
  }

  return {
    get: (directory, key) => namesOf(directory).names.get(key),
    changeCount: (directory) => namesOf(directory).changes,
    put: (directory, key, name, changes) => {
      const content = namesOf(directory);
      if (content.changes === changes) storeName(content, directory, key, name);
    },
    recordOwnChange: (directory, key, name) => {
      const content = namesOf(directory);
      content.changes++;
      storeName(content, directory, key, name);
    },
    drop: (directory, key) => {
      const content = namesOf(directory);
      content.changes++;
      content.completeUntil = 0;
      if (content.names.delete(key)) share.add(-1);
    },
    markComplete: (directory, changes) => {
      const content = namesOf(directory);
      if (content.changes === changes) content.completeUntil = clock.elapsed() + maxCompleteMs;
    },
    isComplete: (directory) => namesOf(directory).completeUntil > clock.elapsed(),
    forget: (directory) => {
      share.add(-(directories.get(directory)?.names.size ?? 0));
      directories.delete(directory);
    },
    [Symbol.dispose]: () => share[Symbol.dispose](),
  };
}
