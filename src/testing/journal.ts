import { closeSync } from 'node:fs';
import { createJournal, type JournalMemory, openJournal } from '#datapath/journal/memory.ts';
import type { Slot } from '#wire/fuse/device.ts';

/** A journal. `open` opens the same memory again, as a successor does. */
export function keepJournal(slots = 4): Disposable & { readonly fd: number; open(): JournalMemory } {
  const fd = createJournal(slots);
  const opened: JournalMemory[] = [];
  return {
    fd,
    open: () => {
      const memory = openJournal(fd);
      opened.push(memory);
      return memory;
    },
    [Symbol.dispose]: () => {
      for (const one of opened) one[Symbol.dispose]();
      closeSync(fd);
    },
  };
}

/** Writes a request as the kernel does, in one piece that begins with its length and number. */
export function putRequest({ buffer }: Slot, unique: number, length: number): number {
  buffer.fill(unique & 0xff, 16, length);
  buffer.writeUInt32LE(unique, 8);
  buffer.writeUInt32LE(0, 12);
  buffer.writeUInt32LE(length, 0);
  return length;
}
