import { createMemory, growMemory, type MemoryMapping, mapMemory } from '#base/linux/shared-memory.ts';
import {
  cells,
  cellsAt,
  cellsSize,
  chunkSize,
  chunksAt,
  head,
  magic,
  maxChunks,
  reservedSlots,
  slotSize,
  slotsAt,
  version,
} from './layout.ts';

/** A piece of the journal, as a buffer and as a view of the same bytes. */
export interface MemoryPiece {
  readonly buffer: Buffer;
  readonly view: DataView;
}

/** The journal mapped into this process. */
export interface JournalMemory extends Disposable {
  readonly slots: number;
  /** Everything except slots and nodes. */
  readonly words: Int32Array;
  readonly view: DataView;
  readonly bytes: Buffer;
  slot(place: number): MemoryPiece;
  /** Numbered across all size classes. */
  cell(place: number): MemoryPiece;
  /** Populates the memory of a slot, so that the kernel need not fault it in while copying a request. */
  populate(place: number): void;
  /** Returns the memory of `count` slots to the system. */
  discard(place: number, count: number): void;
  readonly chunks: readonly DataView[];
  /** Adds a chunk for more nodes. Undefined: the limit is reached. */
  addChunk(): DataView | undefined;
}

/** Unused slots take no memory; most are never used. */
const defaultSlots = reservedSlots + 256;

/** Slots per ArrayBuffer: V8 counts external memory and collects garbage for it, and most slots are never used. */
const slotsPerBuffer = 64;

export function createJournal(slots = defaultSlots): number {
  const fd = createMemory('stowage-journal', head.size);
  formatJournal(fd, slots);
  return fd;
}

/** Turns memory of any size, as created by the keeper, into a journal. An existing journal is left unchanged. */
export function formatJournal(fd: number, slots = defaultSlots): void {
  if (isFormatted(fd)) return;
  growMemory(fd, chunksAt(slots));
  using mapped = mapMemory(fd, 0, head.size);
  const words = new Int32Array(mapped.bytes);
  words[head.version / 4] = version;
  words[head.slots / 4] = slots;
  Atomics.store(words, head.magic / 4, magic);
}

function isFormatted(fd: number): boolean {
  using mapped = mapMemory(fd, 0, head.size);
  return new DataView(mapped.bytes).getUint32(head.magic, true) === magic;
}

/** The memory stays mapped until the process exits or this is disposed. */
export function openJournal(fd: number): JournalMemory {
  const slots = readHead(fd);
  const headMapping = mapMemory(fd, 0, slotsAt(slots));
  const slotMapping = mapMemory(fd, slotsAt(slots), slots * slotSize);
  const cellMapping = mapMemory(fd, cellsAt(slots), cellsSize);
  const view = new DataView(headMapping.bytes);
  const words = new Int32Array(headMapping.bytes);
  const chunks: DataView[] = [];
  const blocks: ArrayBuffer[] = [];
  const mapped: MemoryMapping[] = [headMapping, slotMapping, cellMapping];
  const addMapped = (): DataView => {
    const chunk = mapMemory(fd, chunksAt(slots) + chunks.length * chunkSize, chunkSize);
    mapped.push(chunk);
    const added = new DataView(chunk.bytes);
    chunks.push(added);
    return added;
  };
  for (let i = view.getUint32(head.chunks, true); i > 0; i--) addMapped();
  return {
    slots,
    words,
    view,
    chunks,
    bytes: Buffer.from(headMapping.bytes),
    slot: (place) => {
      const [block, within] = [Math.floor(place / slotsPerBuffer), place % slotsPerBuffer];
      const count = Math.min(slotsPerBuffer, slots - block * slotsPerBuffer);
      blocks[block] ??= slotMapping.part(block * slotsPerBuffer * slotSize, count * slotSize);
      return piece(blocks[block], within * slotSize, slotSize);
    },
    cell: (place) => {
      const [small, large] = cells;
      if (place < small.count) return piece(cellMapping.bytes, place * small.size, small.size);
      return piece(cellMapping.bytes, small.count * small.size + (place - small.count) * large.size, large.size);
    },
    populate: (place) => slotMapping.populate(place * slotSize, slotSize),
    discard: (place, count) => slotMapping.discard(place * slotSize, count * slotSize),
    addChunk: () => {
      if (chunks.length >= maxChunks) return undefined;
      growMemory(fd, chunksAt(slots) + (chunks.length + 1) * chunkSize);
      const added = addMapped();
      Atomics.store(words, head.chunks / 4, chunks.length);
      return added;
    },
    [Symbol.dispose]: () => {
      for (const one of mapped) one[Symbol.dispose]();
    },
  };
}

const piece = (bytes: ArrayBuffer, from: number, size: number): MemoryPiece => ({
  buffer: Buffer.from(bytes, from, size),
  view: new DataView(bytes, from, size),
});

function readHead(fd: number): number {
  using mapped = mapMemory(fd, 0, head.size);
  const view = new DataView(mapped.bytes);
  if (view.getUint32(head.magic, true) !== magic) throw new Error('this is not a journal of the data path');
  const found = view.getUint32(head.version, true);
  if (found !== version) throw new Error(`the journal has version ${found}; this program knows version ${version}`);
  return view.getUint32(head.slots, true);
}
