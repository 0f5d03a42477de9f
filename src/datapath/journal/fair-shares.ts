import { cellCount, line, lines, lineWord as word } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** How many of a resource each mount holds. */
interface Held {
  add(mount: number, count: number): void;
  /** Whether the mount may take another, given its maximum. The first is always allowed. */
  isWithin(mount: number, most: number): boolean;
}

/**
 * A mount's maximum is a part of what is free: alone it gets half of all, several greedy mounts get less each, and some
 * always remains for another.
 */
export const usualShare = 1;

/** Lines, and slots that hold the request of a line. */
export function createShares({ words }: JournalMemory): { readonly lines: Held; readonly slots: Held } {
  const held = { lines: createHeld(), slots: createHeld() };
  for (let place = 0; place < lines; place++) {
    const mount = (words[word(place, line.mount)] ?? 0) - 1;
    if (mount < 0) continue;
    held.lines.add(mount, 1);
    if ((words[word(place, line.cell)] ?? 0) > cellCount) held.slots.add(mount, 1);
  }
  return held;
}

function createHeld(): Held {
  const held = new Map<number, number>();
  return {
    add: (mount, count) => void held.set(mount, (held.get(mount) ?? 0) + count),
    isWithin: (mount, most) => {
      const now = held.get(mount) ?? 0;
      return now === 0 || now < most;
    },
  };
}
