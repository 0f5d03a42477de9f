/** Objects by key, and by the values of index functions. */
export interface IndexedMap<T> {
  readonly size: number;
  get(key: string): T | undefined;
  keys(): Iterable<string>;
  values(): Iterable<T>;
  byIndex(index: string, value: string): readonly T[];
  /** Returns the previous object of the key. */
  put(key: string, object: T): T | undefined;
  remove(key: string): T | undefined;
}

export function createIndexedMap<T>(
  indexFunctions: Readonly<Record<string, (object: T) => readonly string[]>>,
): IndexedMap<T> {
  const objects = new Map<string, T>();
  const indexes = Object.entries(indexFunctions).map(([name, values]) => ({
    name,
    values,
    keys: new Map<string, Set<string>>(),
  }));

  function removeFromIndexes(key: string, object: T): void {
    for (const { keys, values } of indexes) {
      for (const value of values(object)) {
        const keysWithValue = keys.get(value);
        keysWithValue?.delete(key);
        if (keysWithValue?.size === 0) keys.delete(value);
      }
    }
  }

  function addToIndexes(key: string, object: T): void {
    for (const { keys, values } of indexes) {
      for (const value of values(object)) {
        const those = keys.get(value);
        if (those === undefined) keys.set(value, new Set([key]));
        else those.add(key);
      }
    }
  }

  function remove(key: string): T | undefined {
    const before = objects.get(key);
    if (before === undefined) return undefined;
    objects.delete(key);
    removeFromIndexes(key, before);
    return before;
  }

  return {
    get size() {
      return objects.size;
    },
    get: (key) => objects.get(key),
    keys: () => objects.keys(),
    values: () => objects.values(),
    byIndex: (index, value) => {
      const found = indexes.find(({ name }) => name === index);
      if (found === undefined) throw new TypeError(`there is no index “${index}”`);
      return [...(found.keys.get(value) ?? [])].map((key) => objects.get(key)).filter((one) => one !== undefined);
    },
    put: (key, object) => {
      const before = remove(key);
      objects.set(key, object);
      addToIndexes(key, object);
      return before;
    },
    remove,
  };
}
