/** A random generator whose sequence can be repeated from its seed (mulberry32). */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export const pick = <T>(items: readonly T[], random: () => number): T | undefined =>
  items[Math.floor(random() * items.length)];

export function shuffled<T>(items: readonly T[], random: () => number): T[] {
  const keyed = items.map((value) => ({ value, at: random() }));
  return keyed.sort((a, b) => a.at - b.at).map(({ value }) => value);
}
