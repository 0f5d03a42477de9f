/** Finds ids by their keys without storing the keys, only by hash. */
export interface HandleIndex {
  find(key: Uint8Array, hash: number): number | undefined;
  /** The key must be absent. Ids start at 1. */
  add(hash: number, value: number): void;
  remove(hash: number, value: number): void;
  readonly size: number;
}

const deletedSlot = -1;

/** FNV-1a: handles differ in a few bytes at server-specific positions. Never 0. */
export function hashOf(key: Uint8Array): number {
  let sum = 0x811c9dc5;
  for (let i = 0; i < key.length; i++) sum = Math.imul(sum ^ (key[i] as number), 0x01000193);
  return sum >>> 0 || 1;
}

/**
 * A hash table of plain ids, 4 to 8 bytes per entry: a Map with string keys would take twenty times as much for each of
 * a million files.
 */
export function createHandleIndex(
  isKeyOf: (key: Uint8Array, value: number) => boolean,
  hashOfValue: (value: number) => number,
  /** Initial capacity without growing. */
  capacity = 0,
): HandleIndex {
  let table = new Int32Array(2 ** Math.max(10, Math.ceil(Math.log2(2 * capacity + 2))));
  let usedSlots = 0;
  let size = 0;

  function insert(hash: number, value: number): void {
    const mask = table.length - 1;
    let at = hash & mask;
    while ((table[at] as number) > 0) at = (at + 1) & mask;
    if (table[at] === 0) usedSlots++;
    table[at] = value;
  }

  function grow(): void {
    const before = table;
    table = new Int32Array(size * 4 > before.length ? before.length * 2 : before.length);
    usedSlots = 0;
    for (const value of before) if (value > 0) insert(hashOfValue(value), value);
  }

  return {
    find: (key, hash) => {
      const mask = table.length - 1;
      for (let at = hash & mask; ; at = (at + 1) & mask) {
        const value = table[at] as number;
        if (value === 0) return undefined;
        if (value !== deletedSlot && isKeyOf(key, value)) return value;
      }
    },
    add: (hash, value) => {
      if (usedSlots * 2 >= table.length) grow();
      insert(hash, value);
      size++;
    },
    remove: (hash, value) => {
      const mask = table.length - 1;
      let at = hash & mask;
      while (table[at] !== 0 && table[at] !== value) at = (at + 1) & mask;
      if (table[at] !== value) return;
      table[at] = deletedSlot;
      size--;
    },
    get size() {
      return size;
    },
  };
}
