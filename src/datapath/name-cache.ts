import type { Clock } from '#base/clock.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CacheLimit } from './cache-limit.ts';

/** The object of a name; fields that a server left out are undefined. */
export interface NameTarget {
  readonly handle: FileHandle | undefined;
  readonly attributes: Attributes | undefined;
}

export interface Name {
  /** Undefined: the name is absent. */
  readonly meant: NameTarget | undefined;
  /** When it was learned, by the clock and by the attribute cache's event number. */
  readonly at: number;
  readonly since: number;
}

/** Names in directories. A directory's names are cached until another client changes it. */
export interface NameCache extends Disposable {
  get(directory: number, key: string): Name | undefined;
  /** Take this before a call and pass it with the result: a result overtaken by an own change is not cached. */
  changes(directory: number): number;
  put(directory: number, key: string, name: Name, changes: number): void;
  /** Records an own change. */
  set(directory: number, key: string, name: Name): void;
  drop(directory: number, key: string): void;
  /** Marks the directory as completely known, if nothing changed since. */
  complete(directory: number, changes: number): void;
  /** Whether a name missing here is absent. */
  isComplete(directory: number): boolean;
  forget(directory: number): void;
}

interface Content {
  epoch: number;
  changes: number;
  readonly names: Map<string, Name>;
  /** Until then, missing names are absent. */
  completeUntil: number;
}

/** The part of the cache that is dropped at once to make room. */
const droppedPart = 0.1;
/**
 * Changes by other clients are detected by ctime, and on old systems two changes within 4 ms have the same one. So a
 * directory counts as completely known for this long only.
 */
const completeMs = 5_000;

export const keyOf = (name: Buffer): string => name.toString('latin1');

export interface NameCacheParts {
  readonly epochOf: (directory: number) => number;
  readonly clock: Pick<Clock, 'elapsed'>;
  readonly limit: CacheLimit;
}

export function createNameCache({ epochOf, clock, limit }: NameCacheParts): NameCache {
  /** Least recently used first. */
  const directories = new Map<number, Content>();
  const share = limit.join(dropSome);

  function of(id: number): Content {
    const epoch = epochOf(id);
    const content = directories.get(id);
    if (content === undefined) {
      const made: Content = { epoch, changes: 0, names: new Map(), completeUntil: 0 };
      directories.set(id, made);
      return made;
    }
    if (content.epoch !== epoch) {
      content.epoch = epoch;
      clear(content);
    }
    return content;
  }

  function clear(content: Content): void {
    share.add(-content.names.size);
    content.names.clear();
    content.completeUntil = 0;
    // A listing in progress is no longer complete.
    content.changes++;
  }

  /** Drops names but keeps the directories: a change in flight needs their change count. */
  function dropSome(): void {
    const enough = share.size * (1 - droppedPart);
    for (const content of directories.values()) {
      if (share.size <= enough) return;
      if (content.names.size > 0) clear(content);
    }
  }

  function keep(content: Content, id: number, key: string, name: Name): void {
    const { size } = content.names;
    content.names.set(key, name);
    share.add(content.names.size - size);
    if (size > 0) return;
    directories.delete(id);
    directories.set(id, content);
  }

  return {
    get: (directory, key) => of(directory).names.get(key),
    changes: (directory) => of(directory).changes,
    put: (directory, key, name, changes) => {
      const content = of(directory);
      if (content.changes === changes) keep(content, directory, key, name);
    },
    set: (directory, key, name) => {
      const content = of(directory);
      content.changes++;
      keep(content, directory, key, name);
    },
    drop: (directory, key) => {
      const content = of(directory);
      content.changes++;
      content.completeUntil = 0;
      if (content.names.delete(key)) share.add(-1);
    },
    complete: (directory, changes) => {
      const content = of(directory);
      if (content.changes === changes) content.completeUntil = clock.elapsed() + completeMs;
    },
    isComplete: (directory) => of(directory).completeUntil > clock.elapsed(),
    forget: (directory) => {
      share.add(-(directories.get(directory)?.names.size ?? 0));
      directories.delete(directory);
    },
    [Symbol.dispose]: () => share[Symbol.dispose](),
  };
}
