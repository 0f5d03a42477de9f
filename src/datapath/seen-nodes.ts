interface Place {
  readonly parent: number;
  /** One character per byte of the name. */
  readonly key: string;
}

/** A node and where it was last seen. */
export interface SeenNode extends Place {
  readonly id: number;
  readonly isDirectory: boolean;
}

/** Where the kernel saw each node last. */
export interface SeenNodes {
  seen(id: number, parent: number, key: string): void;
  isDirectory(id: number): void;
  get(id: number): Place | undefined;
  /** At most `most` nodes, least recently seen first. */
  oldest(most: number): readonly SeenNode[];
  /** The names on the node's path, the node's own first. */
  path(id: number): Iterable<Place>;
  forget(id: number): void;
}

/** Deeper paths exceed the kernel's limit. */
export const maxDepth = 2048;

export function createSeenNodes(): SeenNodes {
  /** Least recently seen first. */
  const places = new Map<number, Place>();
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
    seen: (id, parent, key) => {
      places.delete(id);
      places.set(id, { parent, key });
    },
    isDirectory: (id) => {
      directories.add(id);
    },
    oldest: (most) =>
      places
        .entries()
        .take(most)
        .map(([id, place]) => ({ id, ...place, isDirectory: directories.has(id) }))
        .toArray(),
    forget: (id) => {
      places.delete(id);
      directories.delete(id);
    },
  };
}
