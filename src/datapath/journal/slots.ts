import type { Clock } from '#base/clock.ts';
import type { Slot } from '#wire/fuse/device.ts';
import { ownersAt } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** Memory that requests are read into, and that long ones stay in. */
export interface Slots {
  at(place: number): Slot;
  /** What `layout.ts` says of it. */
  owner(place: number): number;
  setOwner(place: number, owner: number): void;
  /** All that have one. */
  owned(): readonly Slot[];
  /** For the next request of a mount: one for all of them, because a process reads one request at a time. */
  arm(mount: number): Slot | undefined;
  /** What was read there stays there, until it is freed. */
  keep(slot: Slot): void;
  /** What was read there is elsewhere, or done. */
  empty(slot: Slot): void;
  free(place: number): void;
  /** Memory is not given back any more: it is about to be somebody else's. */
  stop(): void;
  readonly idle: number;
  /** Those in which something is kept. */
  readonly held: number;
}

/** Memory of free slots that were not needed for so long is given back, but for a few. */
const rest = { ms: 5_000, kept: 4 } as const;

/** Without a clock nothing is given back. */
export function createSlots(memory: JournalMemory, clock: Pick<Clock, 'after'> | undefined): Slots {
  const { words } = memory;
  const known: Slot[] = [];
  const wordOf = (place: number): number => ownersAt / 4 + place;
  const owner = (place: number): number => words[wordOf(place)] ?? 0;
  const setOwner = (place: number, to: number): void => void Atomics.store(words, wordOf(place), to);
  const places = Array.from({ length: memory.slots }, (_, i) => i);
  // What was free last is offered first: its memory is there already. Low numbers before high ones.
  const idle = places.filter((place) => owner(place) === 0).reverse();
  /** Of this process: pages that only a predecessor has touched are not. */
  const present = new Set<number>();
  /** The first so many that are idle have no memory. Of a predecessor's nobody knows. */
  let absent = 0;
  /** How few were idle lately: so many have not been needed. */
  let fewest = idle.length;
  let resting: Disposable | undefined;
  let isStopped = false;
  /** For the next request, whoever's it is. */
  let next: Slot | undefined;

  function at(place: number): Slot {
    known[place] ??= { place, ...memory.slot(place) };
    return known[place];
  }

  function take(): Slot | undefined {
    const place = idle.at(-1);
    if (place === undefined) return undefined;
    // A process that is killed while the kernel copies into a page that is not there loses the request: it ends with EIO.
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
    if (next?.place === place) next = undefined;
    idle.push(place);
    restLater();
  }

  function restLater(): void {
    if (idle.length - rest.kept > absent && !isStopped) resting ??= clock?.after(rest.ms, giveBack);
  }

  /** Those that nobody took meanwhile. In a steady stream that is none. */
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
      // It stays: that costs memory only.
    }
  }

  restLater();
  return {
    ...{ at, owner, setOwner, free },
    owned: () => places.filter((place) => owner(place) !== 0).map(at),
    arm: (mount) => {
      next ??= take();
      if (next === undefined) return undefined;
      // Something may lie there of a request that could not be read whole: it is not the next one's.
      next.view.setUint32(0, 0, true);
      if (owner(next.place) !== mount + 1) setOwner(next.place, mount + 1);
      return next;
    },
    keep: (slot) => {
      if (slot === next) next = undefined;
    },
    empty: (slot) => {
      if (slot === next) slot.view.setUint32(0, 0, true);
      else free(slot.place);
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

/** Numbers that follow each other: from which one on, and how many. */
function runsOf(numbers: readonly number[]): readonly { readonly from: number; readonly count: number }[] {
  const runs: { from: number; count: number }[] = [];
  for (const number of numbers.toSorted((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last !== undefined && last.from + last.count === number) last.count++;
    else runs.push({ from: number, count: 1 });
  }
  return runs;
}
