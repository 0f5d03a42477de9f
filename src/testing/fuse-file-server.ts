/**
 * Serves a FUSE file system at FOLDER/mnt in which every name is the file DATA. It is a separate program, so that a
 * test can stop it. The kernel may not cache anything, so each stat(2) waits for this process.
 */
import { fstatSync, openSync, readSync, writeSync } from 'node:fs';
import { outHeaderSize } from '#wire/fuse/abi.ts';
import type { Attr, Operations } from '#wire/fuse/operations.ts';
import { mountFuse } from './fuse-mount.ts';

const [folder = '', data = ''] = process.argv.slice(2);
const fd = openSync(data, 'r+');
const file = 2;

const attr = (node: number): Attr => ({
  ino: node,
  size: node === file ? fstatSync(fd).size : 0,
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
  lookup: () => ({ node: file, generation: 1, attr: attr(file), entryMs: 0, attrMs: 0 }),
  getattr: (node) => ({ attr: attr(node), attrMs: 0 }),
  setattr: (node) => ({ attr: attr(node), attrMs: 0 }),
  open: () => ({ fh: 0, flags: 0 }),
  release: () => undefined,
  flush: () => undefined,
  fsync: () => undefined,
  read: (_node, { offset, size }) => {
    const buffer = Buffer.alloc(outHeaderSize + size);
    return { buffer, length: readSync(fd, buffer, outHeaderSize, size, offset) };
  },
  write: (_node, { offset }, bytes) => writeSync(fd, bytes, 0, bytes.length, offset),
};

const mount = await mountFuse({ folder }, operations);
process.once('SIGTERM', () => void mount[Symbol.asyncDispose]().then(() => process.exit(0)));
process.stdout.write('ready\n');
