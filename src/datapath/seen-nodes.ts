interface EntryKey {
  readonly parent: number;
  /** One character per byte of the name. */
  readonly key: string;
}

/** A node and where it was last seen. */
export interface SeenNode extends EntryKey {
  readonly id: number;
  readonly isDirectory: boolean;
}

/** Where the kernel saw each node last. */
export interface SeenNodes {
  recordSeen(id: number, parent: number, key: string): void;
  markDirectory(id: number): void;
  get(id: number): EntryKey | undefined;
  /** At most `most` nodes, least recently seen first. */
  leastRecentlySeen(maxCount: number): readonly SeenNode[];
  /** The names on the node's path, the node's own first. */
  path(id: number): Iterable<EntryKey>;
  forget(id: number): void;
}

/** Deeper paths exceed the kernel's limit. */
export const maxDepth = 2048;

export function createSeenNodes(): SeenNodes {
  /** Least recently seen first. */
  const places = new Map<number, EntryKey>();
  const directories = new Set<number>();

  return {
    get: (id) => places.get(id),
    path: function* (id) {
      let place = places.get(id);
      for (let depth = 0; place !== undefined && depth < maxDepth; depth++) {
        yield place;
        place = places.get(place.parent);
      }
    },
    recordSeen: (id, parent, key) => {
      places.delete(id);
      places.set(id, { parent, key });
    },
    markDirectory: (id) => {
      directories.add(id);
    },
    leastRecentlySeen: (maxCount) =>
      places
        .entries()
        .take(maxCount)
        .map(([id, place]) => ({ id, ...place, isDirectory: directories.has(id) }))
        .toArray(),
    forget: (id) => {
      places.delete(id);
      directories.delete(id);
    },
  };
}
