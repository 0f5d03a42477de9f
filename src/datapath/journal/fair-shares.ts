import { cellCount, line, lineCount, lineWord } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** How many of a resource each mount holds. */
interface HeldCounts {
  add(mount: number, count: number): void;
  /** Whether the mount may take another, given its maximum. The first is always allowed. */
  mayTake(mount: number, most: number): boolean;
}

/**
 * A mount's maximum is what is free, times its share. So a single mount gets half of all, several busy mounts get less
 * each, and some always remain for another mount.
 */
export const defaultShare = 1;

/** Lines, and slots that hold the request of a line. */
export function createShares({ words }: JournalMemory): { readonly lines: HeldCounts; readonly slots: HeldCounts } {
  const held = { lines: createHeldCounts(), slots: createHeldCounts() };
  for (let place = 0; place < lineCount; place++) {
    const mount = (words[lineWord(place, line.mount)] ?? 0) - 1;
    if (mount < 0) continue;
    held.lines.add(mount, 1);
    if ((words[lineWord(place, line.cell)] ?? 0) > cellCount) held.slots.add(mount, 1);
  }
  return held;
}

function createHeldCounts(): HeldCounts {
  const held = new Map<number, number>();
  return {
    add: (mount, count) => void held.set(mount, (held.get(mount) ?? 0) + count),
    mayTake: (mount, most) => {
      const now = held.get(mount) ?? 0;
      return now === 0 || now < most;
    },
  };
}
