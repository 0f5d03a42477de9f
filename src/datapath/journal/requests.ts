import type { Clock } from '#base/clock.ts';
import type { Slot } from '#wire/fuse/device.ts';
import type { Message } from '#wire/fuse/message.ts';
import type { Proofs } from '../ports.ts';
import { type CrashSuspects, createCrashSuspects } from './crash-suspects.ts';
import { createShares, defaultShare } from './fair-shares.ts';
import {
  cellCount,
  cells,
  line,
  lineAt,
  lineCount,
  lineWord,
  maxInlineBytes,
  maxReplyBytes,
  phase,
  reservedSlots,
  slotInUse,
} from './layout.ts';
import type { JournalMemory, MemoryPiece } from './memory.ts';
import { createProofs, noProof } from './proofs.ts';
import { createSlots } from './slots.ts';

/** A request in the journal. */
export interface JournaledRequest {
  readonly place: number;
  readonly message: Message;
}

/** A request that a predecessor read and did not finish. */
export interface UnfinishedRequest extends JournaledRequest {
  readonly mount: number;
  readonly phase: 'taken' | 'sent' | 'behind' | 'done';
  /** For phase behind: the order of the answers. */
  readonly order: number;
  /** The requester was interrupted; the kernel reports that once. */
  readonly isInterrupted: boolean;
  /** Time since it was read, 0 if unknown. */
  readonly ageMs: number;
  /** Number of data paths that died while it may have been the cause. From `maxByChance` on it is retried alone. */
  readonly crashCount: number;
}

/** A request that was read but has no line. */
export interface UnplacedRequest {
  readonly slot: Slot;
  readonly length: number;
}

/** Unanswered requests, and answered writes that are not on the server's disk: what a crash must not lose. */
export interface Requests extends Proofs, CrashSuspects {
  /** The slot for a mount's next request. All mounts share it: take the request before reading the next. */
  arm(mount: number): Slot | undefined;
  /**
   * Records a request that the kernel wrote into the slot. Undefined: there is no room, or the mount has its share; the
   * request stays in the slot.
   */
  take(mount: number, slot: Slot, length: number, share?: number): JournaledRequest | undefined;
  /** The request in the slot is done and had no line. */
  empty(slot: Slot): void;
  /** The WRITE was answered; its data must stay until they are on the server's disk. */
  markBehind(place: number): void;
  isBehind(place: number): boolean;
  /** The requester was interrupted. */
  markInterrupted(place: number): void;
  /**
   * Stores the answer of a request whose call was sent: after a crash, the successor repeats the answer and not the
   * call.
   */
  keepAnswer(place: number, bytes: Uint8Array): void;
  keptAnswer(place: number): Buffer;
  free(place: number): void;
  /** Frees everything of an unmounted mount. */
  freeAll(mount: number): void;
  /**
   * Returns the predecessor's unfinished requests; none in a new journal. Call once. Frees slots that were only armed.
   */
  restoreUnfinished(): readonly UnfinishedRequest[];
  /**
   * Call after `restoreUnfinished`. Returns a request in the mount's slot that found no room and must still be taken.
   */
  findUnplaced(mount: number): UnplacedRequest | undefined;
  /** Lines and slots in use. */
  readonly held: { readonly lines: number; readonly slots: number };
}

const phases = ['empty', 'taken', 'sent', 'behind', 'done'] as const;

/** The request's unique id without the highest bit, which marks a resend. */
const uniqueOf = (view: DataView): string => `${view.getUint32(12, true) & 0x7fff_ffff}.${view.getUint32(8, true)}`;

/** Without a clock, requests have no age and memory is not returned. */
export function createRequests(memory: JournalMemory, clock?: Pick<Clock, 'elapsed' | 'after'>): Requests {
  const { words, view, bytes } = memory;
  const slots = createSlots(memory, clock);
  /** Test journals and older ones are smaller. */
  const reserved = memory.slots > reservedSlots ? reservedSlots : 0;
  // Most recently freed first: its memory is populated. Low numbers before high ones.
  const idleLines = freeIndexes(lineCount, (place) => words[lineWord(place, line.mount)] === 0);
  const idleCells = idleCellsOf(
    (place) => words[lineWord(place, line.mount)] === 0,
    (place) => words[lineWord(place, line.cell)] ?? 0,
  );
  const [shares, crashSuspects] = [createShares(memory), createCrashSuspects(memory)];
  let lastOrder = 0;
  const hasCell = (kind: number): boolean => (idleCells[kind]?.length ?? 0) > 0;

  /**
   * The process can be killed between any two stores: the store that changes a line's meaning comes last, by this
   * function.
   */
  const store = (index: number, value: number): void => void Atomics.store(words, index, value);
  const setPhase = (place: number, to: number): void => store(lineWord(place, line.phase), to);

  const inlineMessage = (place: number, length: number): Message => {
    const from = lineAt(place, line.request);
    return {
      buffer: bytes.subarray(from, from + maxInlineBytes),
      view: new DataView(bytes.buffer, bytes.byteOffset + from, maxInlineBytes),
      end: length,
    };
  };

  function freeLine(place: number): void {
    const cell = (words[lineWord(place, line.cell)] ?? 0) - 1;
    const mount = (words[lineWord(place, line.mount)] ?? 0) - 1;
    // Freeing a line twice would let two requests share it.
    if (mount < 0) throw new Error(`line ${place} is not in use`);
    store(lineWord(place, line.mount), 0);
    shares.lines.add(mount, -1);
    if (cell >= cellCount) {
      shares.slots.add(mount, -1);
      slots.free(cell - cellCount);
    } else if (cell >= 0) idleCells[classOf(cell)].push(cell);
    idleLines.push(place);
  }

  function writeLine(mount: number, place: number, cell: number): void {
    words[lineWord(place, line.cell)] = cell + 1;
    words[lineWord(place, line.interrupted)] = 0;
    words[lineWord(place, line.proof)] = noProof;
    words[lineWord(place, line.looked)] = words[lineWord(place, line.opened)] = words[lineWord(place, line.listed)] = 0;
    words[lineWord(place, line.crashCount)] = 0;
    view.setFloat64(lineAt(place, line.readAt), clock?.elapsed() ?? 0, true);
    words[lineWord(place, line.phase)] = phase.taken;
    store(lineWord(place, line.mount), mount + 1);
    shares.lines.add(mount, 1);
  }

  function take(mount: number, slot: Slot, length: number, share = defaultShare): JournaledRequest | undefined {
    const cell = length <= maxInlineBytes ? inLine : cells.findIndex(({ size }, i) => length <= size && hasCell(i));
    const staysInSlot = length > maxInlineBytes && cell < 0;
    const isWithin =
      shares.lines.mayTake(mount, idleLines.length * share) &&
      (!staysInSlot || shares.slots.mayTake(mount, (slots.idle - reserved) * share));
    const place = isWithin ? idleLines.pop() : undefined;
    if (place === undefined || staysInSlot) slots.keep(slot);
    if (place === undefined) return undefined;
    if (length <= maxInlineBytes) {
      slot.buffer.copy(bytes, lineAt(place, line.request), 0, length);
      writeLine(mount, place, inLine);
      slots.empty(slot);
      return { place, message: inlineMessage(place, length) };
    }
    const freeCell = idleCells[cell]?.pop();
    if (freeCell === undefined) {
      writeLine(mount, place, cellCount + slot.index);
      slots.setOwner(slot.index, slotInUse);
      shares.slots.add(mount, 1);
      return { place, message: { buffer: slot.buffer, view: slot.view, end: length } };
    }
    const cellMemory = memory.cell(freeCell);
    slot.buffer.copy(cellMemory.buffer, 0, 0, length);
    writeLine(mount, place, freeCell);
    slots.empty(slot);
    return { place, message: { ...cellMemory, end: length } };
  }

  /** The slots of these requests. */
  const slotsOf = (taken: readonly JournaledRequest[]): readonly number[] =>
    taken.map(({ place }) => (words[lineWord(place, line.cell)] ?? 0) - 1 - cellCount).filter((slot) => slot >= 0);

  const pieceOf = (place: number): MemoryPiece => {
    const cell = (words[lineWord(place, line.cell)] ?? 0) - 1;
    if (cell < 0) return inlineMessage(place, 0);
    return cell < cellCount ? memory.cell(cell) : slots.slotAt(cell - cellCount);
  };

  function ageAt(place: number): number {
    const readAt = view.getFloat64(lineAt(place, line.readAt), true);
    return readAt > 0 && clock !== undefined ? Math.max(0, clock.elapsed() - readAt) : 0;
  }

  function unfinishedAt(place: number): UnfinishedRequest | undefined {
    const mount = (words[lineWord(place, line.mount)] ?? 0) - 1;
    if (mount < 0) return undefined;
    const found = phases[words[lineWord(place, line.phase)] ?? 0] ?? 'taken';
    const { buffer, view: request } = pieceOf(place);
    const end = Math.min(request.getUint32(0, true), request.byteLength);
    const interrupted = (words[lineWord(place, line.interrupted)] ?? 0) >>> 0;
    const answered = found === 'behind' ? view.getFloat64(lineAt(place, line.order), true) : 0;
    lastOrder = Math.max(lastOrder, answered);
    return {
      mount,
      place,
      phase: found === 'empty' ? 'taken' : found,
      order: answered,
      isInterrupted: interrupted !== 0 && interrupted === request.getUint32(8, true),
      ageMs: ageAt(place),
      crashCount: crashSuspects.count(place),
      message: { buffer, view: request, end },
    };
  }

  /** The request in an armed slot. */
  function armedAt(slot: Slot): (UnplacedRequest & { readonly mount: number }) | undefined {
    const owner = slots.owner(slot.index);
    const length = slot.view.getUint32(0, true);
    if (owner === 0 || owner === slotInUse || length === 0 || length > slot.buffer.length) return undefined;
    return { slot, length, mount: owner - 1 };
  }

  /** Requests in armed slots that have no line yet, or also have one, if the process was killed in between. */
  function takeArmed(known: ReadonlySet<string>): readonly UnfinishedRequest[] {
    return slots.ownedSlots().flatMap((slot) => {
      const { mount, length } = armedAt(slot) ?? { mount: -1, length: 0 };
      if (length === 0) return [];
      const isKnown = known.has(`${mount} ${uniqueOf(slot.view)}`);
      if (isKnown) slots.free(slot.index);
      const taken = isKnown ? undefined : take(mount, slot, length);
      return taken === undefined
        ? []
        : [{ ...taken, mount, phase: 'taken' as const, order: 0, isInterrupted: false, ageMs: 0, crashCount: 0 }];
    });
  }

  return {
    arm: slots.arm,
    take,
    empty: slots.empty,
    markBehind: (place) => {
      view.setFloat64(lineAt(place, line.order), ++lastOrder, true);
      setPhase(place, phase.behind);
    },
    isBehind: (place) => words[lineWord(place, line.phase)] === phase.behind,
    markInterrupted: (place) => store(lineWord(place, line.interrupted), pieceOf(place).view.getUint32(8, true)),
    keepAnswer: (place, answer) => {
      if (words[lineWord(place, line.phase)] !== phase.sent || answer.length > maxReplyBytes) return;
      bytes.set(answer, lineAt(place, line.reply));
      view.setUint32(lineAt(place, line.replyLength), answer.length, true);
      setPhase(place, phase.done);
    },
    keptAnswer: (place) => {
      const from = lineAt(place, line.reply);
      return bytes.subarray(from, from + view.getUint32(lineAt(place, line.replyLength), true));
    },
    free: freeLine,
    freeAll: (mount) => {
      for (let place = 0; place < lineCount; place++)
        if (words[lineWord(place, line.mount)] === mount + 1) freeLine(place);
      for (const { index } of slots.ownedSlots()) if (slots.owner(index) === mount + 1) slots.free(index);
    },
    restoreUnfinished: () => {
      const known = Array.from({ length: lineCount }, (_, place) => unfinishedAt(place)).filter(
        (one) => one !== undefined,
      );
      crashSuspects.finishCounting();
      // First, because the predecessor may have been killed before it marked these slots as used.
      for (const slot of slotsOf(known)) slots.setOwner(slot, slotInUse);
      const withoutLine = takeArmed(new Set(known.map(({ mount, message }) => `${mount} ${uniqueOf(message.view)}`)));
      const used = new Set(slotsOf([...known, ...withoutLine]));
      for (const slot of slots.ownedSlots()) {
        // Also a slot marked as used for a line that was never written. Slots with waiting requests stay.
        if (!used.has(slot.index) && armedAt(slot) === undefined) slots.free(slot.index);
      }
      return [...known, ...withoutLine];
    },
    setSuspect: crashSuspects.setSuspect,
    markStopping: () => {
      slots.stopReturning();
      crashSuspects.markStopping();
    },
    findUnplaced: (mount) => {
      const own = slots.ownedSlots().filter(({ index }) => slots.owner(index) === mount + 1);
      return own.map(armedAt).find((found) => found !== undefined);
    },
    ...createProofs(memory),
    get held() {
      return { lines: lineCount - idleLines.length, slots: slots.held };
    },
  };
}

/** The request lies in its line. */
const inLine = -1;

const classOf = (cell: number): 0 | 1 => (cell < cells[0].count ? 0 : 1);

/** Cells of each size class that no line uses. */
function idleCellsOf(
  isIdle: (line: number) => boolean,
  cellOf: (line: number) => number,
): readonly [number[], number[]] {
  const taken = new Set(Array.from({ length: lineCount }, (_, place) => (isIdle(place) ? 0 : cellOf(place))));
  const all = freeIndexes(cellCount, (cell) => !taken.has(cell + 1));
  return [all.filter((cell) => classOf(cell) === 0), all.filter((cell) => classOf(cell) === 1)];
}

/** Descending: the last is handed out first. */
const freeIndexes = (count: number, isFree: (index: number) => boolean): number[] =>
  Array.from({ length: count }, (_, i) => count - 1 - i).filter(isFree);
