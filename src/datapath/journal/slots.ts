import type { Clock } from '#base/clock.ts';
import type { Slot } from '#wire/fuse/device.ts';
import { ownersAt } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** Memory into which requests are read; long ones stay there. */
export interface Slots {
  at(place: number): Slot;
  /** The owner word, see `layout.ts`. */
  owner(place: number): number;
  setOwner(place: number, owner: number): void;
  /** All slots with an owner. */
  owned(): readonly Slot[];
  /** The slot for a mount's next request. All mounts share it, because a process reads one request at a time. */
  arm(mount: number): Slot | undefined;
  /** The request stays in the slot until it is freed. */
  keep(slot: Slot): void;
  /** The request was moved or is done. */
  empty(slot: Slot): void;
  free(place: number): void;
  /** Stops returning memory: a successor is about to take over. */
  stop(): void;
  readonly idle: number;
  /** Number of slots that hold a request. */
  readonly held: number;
}

/** Memory of slots unused for this long is returned, except for a few. */
const rest = { ms: 5_000, kept: 4 } as const;

/** Without a clock, no memory is returned. */
export function createSlots(memory: JournalMemory, clock: Pick<Clock, 'after'> | undefined): Slots {
  const { words } = memory;
  const known: Slot[] = [];
  const wordOf = (place: number): number => ownersAt / 4 + place;
  const owner = (place: number): number => words[wordOf(place)] ?? 0;
  const setOwner = (place: number, to: number): void => void Atomics.store(words, wordOf(place), to);
  const places = Array.from({ length: memory.slots }, (_, i) => i);
  // Most recently freed first: its memory is populated. Low numbers before high ones.
  const idle = places.filter((place) => owner(place) === 0).reverse();
  /** Slots populated by this process; pages that only a predecessor touched are not. */
  const present = new Set<number>();
  /** The first idle slots, which have no memory. Unknown for a predecessor's slots. */
  let absent = 0;
  /** The fewest idle slots recently: this many were not needed. */
  let fewest = idle.length;
  let resting: Disposable | undefined;
  let isStopped = false;
  /** The slot for the next request of any mount. */
  let next: Slot | undefined;

  function at(place: number): Slot {
    known[place] ??= { index: place, ...memory.slot(place) };
    return known[place];
  }

  function take(): Slot | undefined {
    const place = idle.at(-1);
    if (place === undefined) return undefined;
    // If the process is killed while the kernel copies into an absent page, the request is lost and ends with EIO.
    if (!present.has(place)) memory.populate(place);
    present.add(place);
    idle.pop();
    fewest = Math.min(fewest, idle.length);
    absent = Math.min(absent, idle.length);
    return at(place);
  }

  function free(place: number): void {
    at(place).view.setUint32(0, 0, true);
    setOwner(place, 0);
    if (next?.index === place) next = undefined;
    idle.push(place);
    restLater();
  }

  function restLater(): void {
    if (idle.length - rest.kept > absent && !isStopped) resting ??= clock?.after(rest.ms, giveBack);
  }

  /** Returns slots that were not used meanwhile; none in a steady load. */
  function giveBack(): void {
    resting = undefined;
    const to = Math.max(absent, fewest - rest.kept);
    const unused = idle.slice(absent, to).filter((place) => owner(place) === 0);
    for (const { from, count } of runsOf(unused)) forget(from, count);
    for (const place of unused) present.delete(place);
    absent = to;
    fewest = idle.length;
    restLater();
  }

  function forget(from: number, count: number): void {
    try {
      memory.forget(from, count);
    } catch {
      // The memory stays; that costs memory only.
    }
  }

  restLater();
  return {
    at,
    owner,
    setOwner,
    free,
    owned: () => places.filter((place) => owner(place) !== 0).map(at),
    arm: (mount) => {
      next ??= take();
      if (next === undefined) return undefined;
      // A partly read request may be in it.
      next.view.setUint32(0, 0, true);
      if (owner(next.index) !== mount + 1) setOwner(next.index, mount + 1);
      return next;
    },
    keep: (slot) => {
      if (slot === next) next = undefined;
    },
    empty: (slot) => {
      if (slot === next) slot.view.setUint32(0, 0, true);
      else free(slot.index);
    },
    stop: () => {
      isStopped = true;
      resting?.[Symbol.dispose]();
    },
    get idle() {
      return idle.length;
    },
    get held() {
      return memory.slots - idle.length - (next === undefined ? 0 : 1);
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
