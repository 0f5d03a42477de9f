import { attrSize, entrySize, openSize, outHeaderSize } from './abi.ts';
import { setU64 } from './message.ts';
import type {
  Attr,
  AttrReply,
  DirectoryEntryPlus,
  DirentWriter,
  Entry,
  Lock,
  OpenReply,
  Statfs,
} from './operations.ts';

/** The memory for a reply, with a view of the same bytes. */
export interface ReplyBuffer {
  readonly buffer: Buffer;
  readonly view: DataView;
}

export function createReplyBuffer(size: number): ReplyBuffer {
  const memory = new ArrayBuffer(size);
  return { buffer: Buffer.from(memory), view: new DataView(memory) };
}

/** Each `put` function writes its part of a reply at `at`, and returns the offset after it. */
function putAttr({ view }: ReplyBuffer, at: number, attr: Attr): number {
  setU64(view, at, attr.ino);
  setU64(view, at + 8, attr.size);
  setU64(view, at + 16, attr.blocks);
  setU64(view, at + 24, attr.atime);
  setU64(view, at + 32, attr.mtime);
  setU64(view, at + 40, attr.ctime);
  view.setUint32(at + 48, attr.atimeNs, true);
  view.setUint32(at + 52, attr.mtimeNs, true);
  view.setUint32(at + 56, attr.ctimeNs, true);
  view.setUint32(at + 60, attr.mode, true);
  view.setUint32(at + 64, attr.nlink, true);
  view.setUint32(at + 68, attr.uid, true);
  view.setUint32(at + 72, attr.gid, true);
  view.setUint32(at + 76, attr.rdev, true);
  view.setUint32(at + 80, attr.blksize, true);
  view.setUint32(at + 84, 0, true);
  return at + attrSize;
}

function putMs(view: DataView, at: number, nsAt: number, ms: number): void {
  const seconds = Math.floor(ms / 1000);
  setU64(view, at, seconds);
  view.setUint32(nsAt, (ms - seconds * 1000) * 1e6, true);
}

export function putEntry(out: ReplyBuffer, at: number, entry: Entry): number {
  const { buffer, view } = out;
  setU64(view, at, entry.node);
  setU64(view, at + 8, entry.generation);
  putMs(view, at + 16, at + 32, entry.entryMs);
  putMs(view, at + 24, at + 36, entry.attrMs);
  if (entry.attr === undefined) buffer.fill(0, at + 40, at + entrySize);
  else putAttr(out, at + 40, entry.attr);
  return at + entrySize;
}

export function putAttrReply(out: ReplyBuffer, at: number, { attr, attrMs }: AttrReply): number {
  putMs(out.view, at, at + 8, attrMs);
  out.view.setUint32(at + 12, 0, true);
  return putAttr(out, at + 16, attr);
}

export function putOpened({ view }: ReplyBuffer, at: number, { fh, flags }: OpenReply): number {
  setU64(view, at, fh);
  view.setUint32(at + 8, flags, true);
  view.setUint32(at + 12, 0, true);
  return at + openSize;
}

export function putStatfs({ buffer, view }: ReplyBuffer, at: number, found: Statfs): number {
  setU64(view, at, found.blocks);
  setU64(view, at + 8, found.bfree);
  setU64(view, at + 16, found.bavail);
  setU64(view, at + 24, found.files);
  setU64(view, at + 32, found.ffree);
  view.setUint32(at + 40, found.bsize, true);
  view.setUint32(at + 44, found.namelen, true);
  view.setUint32(at + 48, found.frsize, true);
  buffer.fill(0, at + 52, at + 80);
  return at + 80;
}

export function putLock({ view }: ReplyBuffer, at: number, { start, end, type, pid }: Lock): number {
  view.setBigUint64(at, start, true);
  view.setBigUint64(at + 8, end, true);
  view.setUint32(at + 16, type, true);
  view.setUint32(at + 20, pid, true);
  return at + 24;
}

export function putU32({ view }: ReplyBuffer, at: number, value: number): number {
  view.setUint32(at, value, true);
  view.setUint32(at + 4, 0, true);
  return at + 8;
}

export function putU64({ view }: ReplyBuffer, at: number, value: number): number {
  setU64(view, at, value);
  return at + 8;
}

export function putBytes({ buffer }: ReplyBuffer, at: number, value: Uint8Array): number {
  buffer.set(value, at);
  return at + value.length;
}

const direntSize = 24;
const noEntry: Entry = { node: 0, generation: 0, attr: undefined, entryMs: 0, attrMs: 0 };

/** Writes directory entries for READDIR, or with `plus` for READDIRPLUS. */
export function createDirentWriter(
  out: ReplyBuffer,
  size: number,
  plus: boolean,
): DirentWriter & { readonly end: number } {
  const limit = Math.min(outHeaderSize + size, out.buffer.length);
  let at: number = outHeaderSize;
  return {
    add: ({ ino, offset, type, name, entry }: DirectoryEntryPlus) => {
      const begin = plus ? at + entrySize : at;
      const end = begin + ((direntSize + name.length + 7) & ~7);
      if (end > limit) return false;
      if (plus) putEntry(out, at, entry ?? noEntry);
      setU64(out.view, begin, ino);
      out.view.setBigUint64(begin + 8, offset, true);
      out.view.setUint32(begin + 16, name.length, true);
      // As in struct dirent: the type bits only.
      out.view.setUint32(begin + 20, (type >>> 12) & 15, true);
      out.buffer.set(name, begin + direntSize);
      out.buffer.fill(0, begin + direntSize + name.length, end);
      at = end;
      return true;
    },
    get end() {
      return at;
    },
  };
}
