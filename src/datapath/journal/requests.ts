import type { Clock } from '#base/clock.ts';
import type { Slot } from '#wire/fuse/device.ts';
import type { Message } from '#wire/fuse/message.ts';
import type { Proofs } from '../ports.ts';
import { type CrashSuspects, createCrashSuspects } from './crash-suspects.ts';
import { createShares, usualShare } from './fair-shares.ts';
import {
  lineAt as at,
  cellCount,
  cells,
  inUse,
  line,
  lines,
  longestInline,
  longestReply,
  phase,
  reservedSlots,
  lineWord as word,
} from './layout.ts';
import type { JournalMemory, Piece } from './memory.ts';
import { createProofs, noProof } from './proofs.ts';
import { createSlots } from './slots.ts';

/** A request that was read. */
export interface JournaledRequest {
  readonly place: number;
  readonly message: Message;
}

/** One that a predecessor read and did not finish. */
export interface UnfinishedRequest extends JournaledRequest {
  readonly mount: number;
  readonly phase: 'taken' | 'sent' | 'behind' | 'done';
  /** Of those that are behind: in which order they were answered. */
  readonly order: number;
  /** Whoever waits for the answer was interrupted: the kernel says so once. */
  readonly isInterrupted: boolean;
  /** How long ago it was read, as far as that is known. */
  readonly ageMs: number;
  /** How many data paths ended while it may have been the cause. `maxByChance`: it shall be tried by itself. */
  readonly outlived: number;
}

/** A request that was read and has no line. */
export interface UnplacedRequest {
  readonly slot: Slot;
  readonly length: number;
}

/** Requests that have no answer yet, and writes that are answered and not on the server's disk: what a crash must not lose. */
export interface Requests extends Proofs, CrashSuspects {
  /** Memory for the next request of a mount. It is the same for all: one must be taken before the next is read. */
  arm(mount: number): Slot | undefined;
  /** The kernel has put a request there. Undefined: there is no room for it, or for this mount; it stays where it is. */
  take(mount: number, slot: Slot, length: number, share?: number): JournaledRequest | undefined;
  /** What the kernel has put there is done, and had no line. */
  empty(slot: Slot): void;
  /** It was answered, and its data must stay until they are on the server's disk. */
  behind(place: number): void;
  isBehind(place: number): boolean;
  /** Whoever waits for its answer was. */
  interrupted(place: number): void;
  /** Keeps the answer of a request whose call was sent: whoever comes after a crash repeats the answer, not the call. */
  keepAnswer(place: number, bytes: Uint8Array): void;
  keptAnswer(place: number): Buffer;
  free(place: number): void;
  /** All of a mount's that is unmounted. */
  freeAll(mount: number): void;
  /** To be asked once. What the predecessor left; nothing in a new journal. Memory that it had only armed is freed by this. */
  left(): readonly UnfinishedRequest[];
  /** After `left`, what lies in the mount's memory since there was no room for it: it is still to be taken. */
  unplaced(mount: number): UnplacedRequest | undefined;
  /** Lines and slots that are in use. */
  readonly held: { readonly lines: number; readonly slots: number };
}

const phases = ['empty', 'taken', 'sent', 'behind', 'done'] as const;

/** The bytes of a request that say which one it is; the highest bit says that it was sent before. */
const uniqueOf = (view: DataView): string => `${view.getUint32(12, true) & 0x7fff_ffff}.${view.getUint32(8, true)}`;

/** Without a clock nothing has an age, and memory is not given back. */
export function createRequests(memory: JournalMemory, clock?: Pick<Clock, 'elapsed' | 'after'>): Requests {
  const { words, view, bytes } = memory;
  const slots = createSlots(memory, clock);
  /** Smaller journals are there for tests, or older. */
  const reserved = memory.slots > reservedSlots ? reservedSlots : 0;
  // What was free last is offered first: its memory is there already. Low numbers before high ones.
  const idleLines = free(lines, (place) => words[word(place, line.mount)] === 0);
  const idleCells = idleCellsOf(
    (place) => words[word(place, line.mount)] === 0,
    (place) => words[word(place, line.cell)] ?? 0,
  );
  const [shares, crashSuspects] = [createShares(memory), createCrashSuspects(memory)];
  let order = 0;
  const hasCell = (kind: number): boolean => (idleCells[kind]?.length ?? 0) > 0;

  /** A process can be killed between any two stores: the one that makes a line mean something else comes last, by this. */
  const store = (index: number, value: number): void => void Atomics.store(words, index, value);
  const setPhase = (place: number, to: number): void => store(word(place, line.phase), to);

  const inline = (place: number, length: number): Message => {
    const from = at(place, line.request);
    return {
      buffer: bytes.subarray(from, from + longestInline),
      view: new DataView(bytes.buffer, bytes.byteOffset + from, longestInline),
      end: length,
    };
  };

  function freeLine(place: number): void {
    const cell = (words[word(place, line.cell)] ?? 0) - 1;
    const mount = (words[word(place, line.mount)] ?? 0) - 1;
    // Whoever has it next would share it with somebody else.
    if (mount < 0) throw new Error(`line ${place} is not in use`);
    store(word(place, line.mount), 0);
    shares.lines.add(mount, -1);
    if (cell >= cellCount) {
      shares.slots.add(mount, -1);
      slots.free(cell - cellCount);
    } else if (cell >= 0) idleCells[classOf(cell)].push(cell);
    idleLines.push(place);
  }

  function begin(mount: number, place: number, cell: number): void {
    words[word(place, line.cell)] = cell + 1;
    words[word(place, line.interrupted)] = 0;
    words[word(place, line.proof)] = noProof;
    words[word(place, line.looked)] = words[word(place, line.opened)] = words[word(place, line.listed)] = 0;
    words[word(place, line.outlived)] = 0;
    view.setFloat64(at(place, line.readAt), clock?.elapsed() ?? 0, true);
    words[word(place, line.phase)] = phase.taken;
    store(word(place, line.mount), mount + 1);
    shares.lines.add(mount, 1);
  }

  function take(mount: number, slot: Slot, length: number, share = usualShare): JournaledRequest | undefined {
    const cell = length <= longestInline ? here : cells.findIndex(({ size }, i) => length <= size && hasCell(i));
    const staysThere = length > longestInline && cell < 0;
    const isWithin =
      shares.lines.isWithin(mount, idleLines.length * share) &&
      (!staysThere || shares.slots.isWithin(mount, (slots.idle - reserved) * share));
    const place = isWithin ? idleLines.pop() : undefined;
    if (place === undefined || staysThere) slots.keep(slot);
    if (place === undefined) return undefined;
    if (length <= longestInline) {
      slot.buffer.copy(bytes, at(place, line.request), 0, length);
      begin(mount, place, here);
      slots.empty(slot);
      return { place, message: inline(place, length) };
    }
    const moved = idleCells[cell]?.pop();
    if (moved === undefined) {
      begin(mount, place, cellCount + slot.place);
      slots.setOwner(slot.place, inUse);
      shares.slots.add(mount, 1);
      return { place, message: { buffer: slot.buffer, view: slot.view, end: length } };
    }
    const into = memory.cell(moved);
    slot.buffer.copy(into.buffer, 0, 0, length);
    begin(mount, place, moved);
    slots.empty(slot);
    return { place, message: { ...into, end: length } };
  }

  /** Those that the requests lie in. */
  const slotsOf = (taken: readonly JournaledRequest[]): readonly number[] =>
    taken.map(({ place }) => (words[word(place, line.cell)] ?? 0) - 1 - cellCount).filter((slot) => slot >= 0);

  const pieceOf = (place: number): Piece => {
    const cell = (words[word(place, line.cell)] ?? 0) - 1;
    if (cell < 0) return inline(place, 0);
    return cell < cellCount ? memory.cell(cell) : slots.at(cell - cellCount);
  };

  function ageAt(place: number): number {
    const readAt = view.getFloat64(at(place, line.readAt), true);
    return readAt > 0 && clock !== undefined ? Math.max(0, clock.elapsed() - readAt) : 0;
  }

  function leftAt(place: number): UnfinishedRequest | undefined {
    const mount = (words[word(place, line.mount)] ?? 0) - 1;
    if (mount < 0) return undefined;
    const found = phases[words[word(place, line.phase)] ?? 0] ?? 'taken';
    const { buffer, view: request } = pieceOf(place);
    const end = Math.min(request.getUint32(0, true), request.byteLength);
    const interrupted = (words[word(place, line.interrupted)] ?? 0) >>> 0;
    const answered = found === 'behind' ? view.getFloat64(at(place, line.order), true) : 0;
    order = Math.max(order, answered);
    return {
      ...{ mount, place, phase: found === 'empty' ? 'taken' : found, order: answered },
      isInterrupted: interrupted !== 0 && interrupted === request.getUint32(8, true),
      ageMs: ageAt(place),
      outlived: crashSuspects.count(place),
      message: { buffer, view: request, end },
    };
  }

  /** What lies in memory that is armed. */
  function armedAt(slot: Slot): (UnplacedRequest & { readonly mount: number }) | undefined {
    const owner = slots.owner(slot.place);
    const length = slot.view.getUint32(0, true);
    if (owner === 0 || owner === inUse || length === 0 || length > slot.buffer.length) return undefined;
    return { slot, length, mount: owner - 1 };
  }

  /** Read by the kernel into memory that was armed, and not yet in a line; or in a line too, when it was killed in between. */
  function inArmed(known: ReadonlySet<string>): readonly UnfinishedRequest[] {
    return slots.owned().flatMap((each) => {
      const { mount, length } = armedAt(each) ?? { mount: -1, length: 0 };
      if (length === 0) return [];
      const isKnown = known.has(`${mount} ${uniqueOf(each.view)}`);
      if (isKnown) slots.free(each.place);
      const taken = isKnown ? undefined : take(mount, each, length);
      return taken === undefined
        ? []
        : [{ ...taken, mount, phase: 'taken' as const, order: 0, isInterrupted: false, ageMs: 0, outlived: 0 }];
    });
  }

  return {
    ...{ arm: slots.arm, take, empty: slots.empty },
    behind: (place) => {
      view.setFloat64(at(place, line.order), ++order, true);
      setPhase(place, phase.behind);
    },
    isBehind: (place) => words[word(place, line.phase)] === phase.behind,
    interrupted: (place) => store(word(place, line.interrupted), pieceOf(place).view.getUint32(8, true)),
    keepAnswer: (place, answer) => {
      if (words[word(place, line.phase)] !== phase.sent || answer.length > longestReply) return;
      bytes.set(answer, at(place, line.reply));
      view.setUint32(at(place, line.replyLength), answer.length, true);
      setPhase(place, phase.done);
    },
    keptAnswer: (place) => {
      const from = at(place, line.reply);
      return bytes.subarray(from, from + view.getUint32(at(place, line.replyLength), true));
    },
    free: freeLine,
    freeAll: (mount) => {
      for (let place = 0; place < lines; place++) if (words[word(place, line.mount)] === mount + 1) freeLine(place);
      for (const { place } of slots.owned()) if (slots.owner(place) === mount + 1) slots.free(place);
    },
    left: () => {
      const known = Array.from({ length: lines }, (_, place) => leftAt(place)).filter((one) => one !== undefined);
      crashSuspects.counted();
      // First: it may have been killed before it could say so, and nobody must take such memory for free.
      for (const slot of slotsOf(known)) slots.setOwner(slot, inUse);
      const late = inArmed(new Set(known.map(({ mount, message }) => `${mount} ${uniqueOf(message.view)}`)));
      const used = new Set(slotsOf([...known, ...late]));
      for (const slot of slots.owned()) {
        // Also one that was said to be in use by a line that then never was. What there was no room for stays.
        if (!used.has(slot.place) && armedAt(slot) === undefined) slots.free(slot.place);
      }
      return [...known, ...late];
    },
    suspect: crashSuspects.suspect,
    stopping: () => {
      slots.stop();
      crashSuspects.stopping();
    },
    unplaced: (mount) => {
      const own = slots.owned().filter(({ place }) => slots.owner(place) === mount + 1);
      return own.map(armedAt).find((found) => found !== undefined);
    },
    ...createProofs(memory),
    get held() {
      return { lines: lines - idleLines.length, slots: slots.held };
    },
  };
}

/** Of a request that lies in its line. */
const here = -1;

const classOf = (cell: number): 0 | 1 => (cell < cells[0].count ? 0 : 1);

/** Cells of each class that no line points to. */
function idleCellsOf(
  isIdle: (line: number) => boolean,
  cellOf: (line: number) => number,
): readonly [number[], number[]] {
  const taken = new Set(Array.from({ length: lines }, (_, place) => (isIdle(place) ? 0 : cellOf(place))));
  const all = free(cellCount, (cell) => !taken.has(cell + 1));
  return [all.filter((cell) => classOf(cell) === 0), all.filter((cell) => classOf(cell) === 1)];
}

/** In descending order: the last is given out first. */
const free = (count: number, isFree: (index: number) => boolean): number[] =>
  Array.from({ length: count }, (_, i) => count - 1 - i).filter(isFree);
