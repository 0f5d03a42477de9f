/**
 * A data path that serves one file, `who`, on each mount of its keeper. The file contains the data path's process id.
 * The first data path never answers a MKDIR: it stores the request in the journal, and a thread of it notifies the
 * kernel of a name in the same directory. That thread hangs in the kernel until a successor answers the MKDIR.
 */

import { readSync, writeSync } from 'node:fs';
import process from 'node:process';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { hardenProcess } from '#keeper/harden-process.ts';
import { joinKeeper } from '#keeper/join-keeper.ts';
import { opcode, outHeaderSize, requestOverhead } from '#wire/fuse/abi.ts';
import { type Device, openDevice, type Slot } from '#wire/fuse/device.ts';
import { header, type Message } from '#wire/fuse/message.ts';
import { invalidateEntry } from '#wire/fuse/notify.ts';
import type { Attr, Entry, Operations } from '#wire/fuse/operations.ts';
import { createSession } from '#wire/fuse/session.ts';
import { defaultInitOptions } from '../fuse-mount.ts';

hardenProcess('stowage standby', -900);

const [root, file, folder] = [1, 2, 3];
/** The offset in the journal of the stored MKDIR. */
const mkdirOffset = 1024;
const maxMkdirBytes = 1024;
const content = Buffer.from(`${process.pid}\n`);
const attr = (node: number): Attr => ({
  ino: node,
  size: node === file ? content.length : 0,
  blocks: 0,
  nlink: 1,
  uid: 0,
  gid: 0,
  rdev: 0,
  atime: 0,
  mtime: 0,
  ctime: 0,
  atimeNs: 0,
  mtimeNs: 0,
  ctimeNs: 0,
  blksize: 4096,
  mode: node === file ? 0o100644 : 0o040755,
});
const entry = (node: number): Entry => ({ node, generation: 1, attr: attr(node), entryMs: 0, attrMs: 0 });
const nothing: Entry = { node: 0, generation: 0, attr: undefined, entryMs: 0, attrMs: 0 };
const operations: Partial<Operations> = {
  lookup: (_, name) => (String(name) === 'who' ? entry(file) : nothing),
  mkdir: () => entry(folder),
  getattr: (node) => ({ attr: attr(node), attrMs: 0 }),
  open: () => ({ fh: 0, flags: 0 }),
  read: () => {
    const buffer = Buffer.concat([Buffer.alloc(outHeaderSize), content]);
    return { buffer, length: content.length };
  },
};

type As = 'first' | 'successor';
let journal = -1;

async function serve(fd: number, as: As): Promise<Device> {
  const free = Array.from({ length: 8 }, (_, place) => createSlot(place));
  const used = new Map<number, Slot>();
  const freeSlot = (place: number): void => {
    free.push(used.get(place) ?? createSlot(place));
    used.delete(place);
  };
  const session = createSession({
    operations,
    initOptions: defaultInitOptions,
    store: {
      reply: (place, bytes) => {
        device.write(bytes);
        freeSlot(place);
      },
      finished: freeSlot,
    },
  });
  const device = openDevice({
    fd,
    nextSlot: () => {
      if (free.length === 0) free.push(createSlot(used.size + 100));
      return free.at(-1);
    },
    onRequest: (slot, end) => {
      free.pop();
      used.set(slot.index, slot);
      const message = { buffer: slot.buffer, view: slot.view, end };
      if (as === 'first' && header.opcode(message) === opcode.mkdir) hang(device, message);
      else session.handle(slot.index, message);
    },
    onEnd: () => undefined,
  });
  const left = readStoredMkdir();
  if (as === 'successor' && left !== undefined) session.handle(-1, left);
  return device;
}

function hang(device: Device, { buffer, end }: Message): void {
  writeSync(journal, buffer, 0, end, mkdirOffset);
  void device.writeInThread(invalidateEntry(root, Buffer.from('who'), { expireOnly: false }));
}

function readStoredMkdir(): Message | undefined {
  const buffer = Buffer.alloc(maxMkdirBytes);
  readSync(journal, buffer, 0, buffer.length, mkdirOffset);
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.length);
  const end = view.getUint32(0, true);
  return end === 0 ? undefined : { buffer, view, end };
}

function createSlot(place: number): Slot {
  const memory = new ArrayBuffer(defaultInitOptions.maxWrite + requestOverhead);
  return { index: place, buffer: Buffer.from(memory), view: new DataView(memory) };
}

let as: As = 'first';
const devices = new Map<string, Device>();
const link = joinKeeper({
  clock: systemClock(),
  log: silentLog(),
  version: 'fuse',
  signal: new AbortController().signal,
  handlers: {
    serve: (given) => {
      ({ as, journal } = given);
      const all = given.mounts.map(async ({ id, fd }) => devices.set(id, await serve(fd, as)));
      void Promise.all(all).then(() => link.ready());
    },
    add: ({ id, fd }) => void serve(fd, as).then((device) => devices.set(id, device)),
    remove: (id) => devices.get(id)?.[Symbol.dispose](),
    flush: () => Promise.resolve(0),
    stop: () => {
      for (const device of devices.values()) device[Symbol.dispose]();
      return Promise.resolve();
    },
    exit: () => process.exit(0),
  },
});
