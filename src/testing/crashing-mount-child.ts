import { fstatSync, readSync, writeSync } from 'node:fs';
import { systemClock } from '#base/clock.ts';
import { openJournal } from '#datapath/journal/memory.ts';
import { createRequests } from '#datapath/journal/requests.ts';
import { createPoisonRequests } from '#datapath/poison-requests.ts';
import { serveMount } from '#datapath/served-mount.ts';
import { outHeaderSize } from '#wire/fuse/abi.ts';
import type { Attr, Operations } from '#wire/fuse/operations.ts';
import { defaultInitOptions } from './fuse-mount.ts';

/**
 * Serves a file `data` on descriptor 3 (/dev/fuse). Its contents come from the file on descriptor 5, and its journal is
 * descriptor 4. It answers slowly, so that a kill always hits a request in flight. It prints how many requests its
 * predecessor left, and once more when a new request is in flight.
 */
const [fuse, journal, data] = [3, 4, 5];
const file = 2;
const clock = systemClock();
const requests = createRequests(openJournal(journal));
let hasToSay = false;
const pause = (): Promise<void> => {
  if (hasToSay) process.stdout.write('busy\n');
  hasToSay = false;
  return new Promise((resolve) => setTimeout(resolve, Math.random() * 2));
};

const attr = (node: number): Attr => ({
  ino: node,
  size: node === file ? fstatSync(data).size : 0,
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

const operations: Partial<Operations> = {
  lookup: () => ({ node: file, generation: 1, attr: attr(file), entryMs: 1000, attrMs: 1000 }),
  getattr: (node) => ({ attr: attr(node), attrMs: 1000 }),
  setattr: (node) => ({ attr: attr(node), attrMs: 1000 }),
  open: () => ({ fh: 0, flags: 0 }),
  release: () => undefined,
  flush: () => undefined,
  fsync: () => undefined,
  read: async (_node, { offset, size }) => {
    await pause();
    // Delayed, so that the process first prints how many requests were left.
    if (process.argv.includes('dies-reading')) setTimeout(() => process.kill(process.pid, 'SIGKILL'), 50);
    if (process.argv.includes('dies-reading')) await new Promise(() => undefined);
    const buffer = Buffer.alloc(outHeaderSize + size);
    return { buffer, length: readSync(data, buffer, outHeaderSize, size, offset) };
  },
  write: async (_node, { offset }, bytes, { slot: place }) => {
    await pause();
    // The data are written, but the caller has not received the answer yet.
    if (process.argv.includes('dies-behind')) {
      requests.markBehind(place);
      process.kill(process.pid, 'SIGKILL');
    }
    return writeSync(data, bytes, 0, bytes.length, offset);
  },
};

const left = requests.restoreUnfinished();
await serveMount({
  fd: fuse,
  mount: 0,
  requests,
  operations,
  initOptions: defaultInitOptions,
  pausedMounts: new Set(),
  unfinished: left,
  clock,
  poisonRequests: createPoisonRequests(clock, requests.setSuspect),
  onAnsweredWrite: ({ place, offset, data: bytes }) => {
    writeSync(data, bytes, 0, bytes.length, offset);
    requests.free(place);
  },
  onInit: () => undefined,
  onFault: (operation, cause) => {
    process.stderr.write(`${operation}: ${String(cause)}\n`);
    if (!process.argv.includes('dies-reading')) process.exit(4);
  },
  onEnd: () => process.exit(0),
});
process.stdout.write(`left ${left.length}\n`);
hasToSay = true;
