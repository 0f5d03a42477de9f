/** A data path that serves one file, `who`, on every mount that its keeper gives it: in it stands its process number. */

import { appendFileSync } from 'node:fs';
import process from 'node:process';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { joinKeeper } from '#keeper/data-path.ts';
import { protect } from '#keeper/protect.ts';
import { outHeaderSize, requestOverhead } from '#wire/fuse/abi.ts';
import { type Device, openDevice, type Slot } from '#wire/fuse/device.ts';
import type { Attr, Operations } from '#wire/fuse/operations.ts';
import { createSession } from '#wire/fuse/session.ts';
import { usualWishes } from '../fuse-mount.ts';

protect('stowage standby', -900);
appendFileSync(`${process.env['STOWAGE_TEST_FOLDER']}/pids`, `${process.pid}\n`);

const file = 2;
const content = Buffer.from(`${process.pid}\n`);
const attr = (node: number): Attr => ({
  ...{ ino: node, size: node === file ? content.length : 0, blocks: 0, nlink: 1, uid: 0, gid: 0, rdev: 0 },
  ...{ atime: 0, mtime: 0, ctime: 0, atimeNs: 0, mtimeNs: 0, ctimeNs: 0, blksize: 4096 },
  mode: node === file ? 0o100644 : 0o040755,
});
const operations: Partial<Operations> = {
  lookup: () => ({ node: file, generation: 1, attr: attr(file), entryMs: 0, attrMs: 0 }),
  getattr: (node) => ({ attr: attr(node), attrMs: 0 }),
  open: () => ({ fh: 0, flags: 0 }),
  read: () => {
    const buffer = Buffer.concat([Buffer.alloc(outHeaderSize), content]);
    return { buffer, length: content.length };
  },
};

async function serve(fd: number): Promise<Device> {
  const free = Array.from({ length: 8 }, (_, place) => createSlot(place));
  const used = new Map<number, Slot>();
  const letGo = (place: number): void => {
    free.push(used.get(place) ?? createSlot(place));
    used.delete(place);
  };
  const session = createSession({
    ...{ operations, wishes: usualWishes },
    desk: {
      answer: (place, bytes) => {
        device.write(bytes);
        letGo(place);
      },
      finished: letGo,
    },
  });
  const device = await openDevice({
    fd,
    next: () => {
      const slot = free.pop() ?? createSlot(used.size + 100);
      used.set(slot.place, slot);
      return slot;
    },
    onRequest: ({ place, buffer, view }, end) => session.take(place, { buffer, view, end }),
    onEnd: () => undefined,
  });
  return device;
}

function createSlot(place: number): Slot {
  const memory = new ArrayBuffer(usualWishes.maxWrite + requestOverhead);
  return { place, buffer: Buffer.from(memory), view: new DataView(memory) };
}

const devices = new Map<string, Device>();
const link = joinKeeper({
  ...{ clock: systemClock(), log: silentLog(), version: 'fuse', signal: new AbortController().signal },
  handlers: {
    serve: ({ mounts }) => {
      void Promise.all(mounts.map(async ({ id, fd }) => devices.set(id, await serve(fd)))).then(() => link.ready());
    },
    add: ({ id, fd }) => void serve(fd).then((device) => devices.set(id, device)),
    remove: (id) => devices.get(id)?.[Symbol.dispose](),
    stop: () => {
      for (const device of devices.values()) device[Symbol.dispose]();
      return Promise.resolve();
    },
    unneeded: () => process.exit(0),
  },
});
