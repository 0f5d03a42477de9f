import type { Clock } from '#base/clock.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CacheLimit } from './cache-limit.ts';

/** What a name means: undefined where a server left it out. */
export interface Meant {
  readonly handle: FileHandle | undefined;
  readonly attributes: Attributes | undefined;
}

export interface Name {
  /** Undefined: nothing has this name. */
  readonly meant: Meant | undefined;
  /** When it was learned, by the clock, and in the order of what is known of attributes. */
  readonly at: number;
  readonly since: number;
}

/** What the names in directories mean. Kept for each directory until somebody else changes it. */
export interface NameCache extends Disposable {
  get(directory: number, key: string): Name | undefined;
  /** To be taken before a call, and given with what it brings: what a change of our own overtook is not kept. */
  changes(directory: number): number;
  put(directory: number, key: string, name: Name, changes: number): void;
  /** Changed by ourselves. */
  set(directory: number, key: string, name: Name): void;
  drop(directory: number, key: string): void;
  /** All names are known, if nothing has changed since. */
  complete(directory: number, changes: number): void;
  /** Whether what is not known here is not there. */
  isComplete(directory: number): boolean;
  forget(directory: number): void;
}

interface Content {
  epoch: number;
  changes: number;
  readonly names: Map<string, Name>;
  /** By the clock; until then what is not among the names is not there. */
  completeUntil: number;
}

/** Of what there is, so much goes at once when room is made. */
const droppedPart = 0.1;
/**
 * Whether somebody else changed a directory is seen by its time, and on old systems two changes within 4 ms have the same.
 * So for no longer than this a directory counts as known without being asked for a name.
 */
const completeMs = 5_000;

export const keyOf = (name: Buffer): string => name.toString('latin1');

export interface NameCacheParts {
  readonly epochOf: (directory: number) => number;
  readonly clock: Pick<Clock, 'elapsed'>;
  readonly limit: CacheLimit;
}

export function createNameCache({ epochOf, clock, limit }: NameCacheParts): NameCache {
  /** Those used last are last. */
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
    // A listing under way is no longer all that is known.
    content.changes++;
  }

  /** The names of directories alone: a change under way counts on its number. */
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
