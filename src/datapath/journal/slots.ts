import type { Clock } from '#base/clock.ts';
import type { Slot } from '#wire/fuse/device.ts';
import { ownersAt } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** Memory into which requests are read; long ones stay there. */
export interface Slots {
  slotAt(place: number): Slot;
  /** The owner word, see `layout.ts`. */
  owner(place: number): number;
  setOwner(place: number, owner: number): void;
  /** All slots with an owner. */
  ownedSlots(): readonly Slot[];
  /** The slot for a mount's next request. All mounts share it, because a process reads one request at a time. */
  arm(mount: number): Slot | undefined;
  /** The request stays in the slot until it is freed. */
  keep(slot: Slot): void;
  /** The request was moved or is done. */
  empty(slot: Slot): void;
  free(place: number): void;
  /** Stops returning memory: a successor is about to take over. */
  stopReturning(): void;
  readonly idle: number;
  /** Number of slots that hold a request. */
  readonly held: number;
}

/** Memory of slots unused for this long is returned, except for a few. */
const memoryReturn = { afterMs: 5_000, keptSlots: 4 } as const;

/** Without a clock, no memory is returned. */
export function createSlots(memory: JournalMemory, clock: Pick<Clock, 'after'> | undefined): Slots {
  const { words } = memory;
  const slotCache: Slot[] = [];
  const wordOf = (place: number): number => ownersAt / 4 + place;
  const owner = (place: number): number => words[wordOf(place)] ?? 0;
  const setOwner = (place: number, to: number): void => void Atomics.store(words, wordOf(place), to);
  const places = Array.from({ length: memory.slots }, (_, i) => i);
  // Most recently freed first: its memory is populated. Low numbers before high ones.
  const idle = places.filter((place) => owner(place) === 0).reverse();
  /** Slots populated by this process; pages that only a predecessor touched are not. */
  const populated = new Set<number>();
  /** How many of the first idle slots have no memory. A predecessor's slots may have some. */
  let unpopulatedCount = 0;
  /** Minimum number of idle slots since memory was last returned: this many were not needed. */
  let minIdle = idle.length;
  let returnTimer: Disposable | undefined;
  let isStopped = false;
  /** The slot for the next request of any mount. */
  let armedSlot: Slot | undefined;

  function slotAt(place: number): Slot {
    slotCache[place] ??= { index: place, ...memory.slot(place) };
    return slotCache[place];
  }

  function takeIdle(): Slot | undefined {
    const place = idle.at(-1);
    if (place === undefined) return undefined;
    // If the process is killed while the kernel copies into an absent page, the request is lost and ends with EIO.
    if (!populated.has(place)) memory.populate(place);
    populated.add(place);
    idle.pop();
    minIdle = Math.min(minIdle, idle.length);
    unpopulatedCount = Math.min(unpopulatedCount, idle.length);
    return slotAt(place);
  }

  function free(place: number): void {
    slotAt(place).view.setUint32(0, 0, true);
    setOwner(place, 0);
    if (armedSlot?.index === place) armedSlot = undefined;
    idle.push(place);
    scheduleReturn();
  }

  function scheduleReturn(): void {
    if (idle.length - memoryReturn.keptSlots > unpopulatedCount && !isStopped)
      returnTimer ??= clock?.after(memoryReturn.afterMs, returnMemory);
  }

  /** Returns slots that were not used meanwhile; none in a steady load. */
  function returnMemory(): void {
    returnTimer = undefined;
    const to = Math.max(unpopulatedCount, minIdle - memoryReturn.keptSlots);
    const unused = idle.slice(unpopulatedCount, to).filter((place) => owner(place) === 0);
    for (const { from, count } of runsOf(unused)) discard(from, count);
    for (const place of unused) populated.delete(place);
    unpopulatedCount = to;
    minIdle = idle.length;
    scheduleReturn();
  }

  function discard(from: number, count: number): void {
    try {
      memory.discard(from, count);
    } catch {
      // The memory stays; that costs memory only.
    }
  }

  scheduleReturn();
  return {
    slotAt,
    owner,
    setOwner,
    free,
    ownedSlots: () => places.filter((place) => owner(place) !== 0).map(slotAt),
    arm: (mount) => {
      armedSlot ??= takeIdle();
      if (armedSlot === undefined) return undefined;
      // A partly read request may be in it.
      armedSlot.view.setUint32(0, 0, true);
      if (owner(armedSlot.index) !== mount + 1) setOwner(armedSlot.index, mount + 1);
      return armedSlot;
    },
    keep: (slot) => {
      if (slot === armedSlot) armedSlot = undefined;
    },
    empty: (slot) => {
      if (slot === armedSlot) slot.view.setUint32(0, 0, true);
      else free(slot.index);
    },
    stopReturning: () => {
      isStopped = true;
      returnTimer?.[Symbol.dispose]();
    },
    get idle() {
      return idle.length;
    },
    get held() {
      return memory.slots - idle.length - (armedSlot === undefined ? 0 : 1);
    },
  };
}

/** Groups consecutive numbers into runs. */
function runsOf(numbers: readonly number[]): readonly { readonly from: number; readonly count: number }[] {
  const runs: { from: number; count: number }[] = [];
  for (const number of numbers.toSorted((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last !== undefined && last.from + last.count === number) last.count++;
    else runs.push({ from: number, count: 1 });
  }
  return runs;
}
