/** Finds numbers by the bytes they belong to, without keeping those bytes: they lie where `bytesOf` finds them. */
export interface HandleIndex {
  find(key: Uint8Array): number | undefined;
  /** Must not be there yet. Numbers begin at 1. */
  add(key: Uint8Array, value: number): void;
  remove(key: Uint8Array, value: number): void;
  readonly size: number;
}

const gone = -1;

/** FNV-1a: handles differ in a few bytes, wherever a server puts them. */
function hash(key: Uint8Array): number {
  let sum = 0x811c9dc5;
  for (let i = 0; i < key.length; i++) sum = Math.imul(sum ^ (key[i] as number), 0x01000193);
  return sum >>> 0;
}

/**
 * A hash table of numbers alone, 4 to 8 bytes for each: a Map from strings would take twenty times as much for each of a
 * million files.
 */
export function createHandleIndex(
  isKeyOf: (key: Uint8Array, value: number) => boolean,
  keyOf: (value: number) => Uint8Array,
): HandleIndex {
  let table = new Int32Array(1024);
  let used = 0;
  let size = 0;

  const placeOf = (key: Uint8Array): number => {
    const mask = table.length - 1;
    for (let at = hash(key) & mask; ; at = (at + 1) & mask) {
      const value = table[at] as number;
      if (value === 0 || (value !== gone && isKeyOf(key, value))) return at;
    }
  };

  function insert(key: Uint8Array, value: number): void {
    const mask = table.length - 1;
    let at = hash(key) & mask;
    while ((table[at] as number) > 0) at = (at + 1) & mask;
    if (table[at] === 0) used++;
    table[at] = value;
  }

  function grow(): void {
    const before = table;
    table = new Int32Array(size * 4 > before.length ? before.length * 2 : before.length);
    used = 0;
    for (const value of before) if (value > 0) insert(keyOf(value), value);
  }

  return {
    find: (key) => {
      const value = table[placeOf(key)] as number;
      return value === 0 ? undefined : value;
    },
    add: (key, value) => {
      if (used * 2 >= table.length) grow();
      insert(key, value);
      size++;
    },
    remove: (key, value) => {
      const at = placeOf(key);
      if (table[at] !== value) return;
      table[at] = gone;
      size--;
    },
    get size() {
      return size;
    },
  };
}
