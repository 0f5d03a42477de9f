import { XdrError, type XdrReader } from '../xdr/reader.ts';
import type { Text, XdrWriter } from '../xdr/writer.ts';

export const nfsProgram = 100003;
export const nfsVersion = 3;
/** RFC 1813, section 2.4. */
export const maxHandleBytes = 64;
export const maxNameBytes = 255;
export const maxPathBytes = 4096;
/** The limit on one READ or WRITE, even if the server offers more. */
export const maxTransferBytes = 1024 * 1024;

export type FileHandle = Uint8Array;

export const fileType = {
  regular: 1,
  directory: 2,
  block: 3,
  character: 4,
  link: 5,
  socket: 6,
  fifo: 7,
} as const;

export interface Time {
  readonly seconds: number;
  readonly nanoseconds: number;
}

/** fattr3. Each time is two numbers, so that decoding creates one object and rounds nothing. */
export interface Attributes {
  readonly type: number;
  readonly mode: number;
  readonly links: number;
  readonly uid: number;
  readonly gid: number;
  readonly size: number;
  readonly used: number;
  readonly major: number;
  readonly minor: number;
  readonly fsid: bigint;
  readonly fileId: bigint;
  readonly atime: number;
  readonly atimeNs: number;
  readonly mtime: number;
  readonly mtimeNs: number;
  readonly ctime: number;
  readonly ctimeNs: number;
}

/** The length of fattr3. */
export const attributesBytes = 84;

export const readAttributes = (reader: XdrReader): Attributes =>
  attributesAt(reader.view, reader.skipBytes(attributesBytes));

/** The caller must have checked that all bytes are there. */
export function attributesAt(view: DataView, at: number): Attributes {
  return {
    type: view.getUint32(at),
    // Keep the permission bits; some servers set others.
    mode: view.getUint32(at + 4) & 0o7777,
    links: view.getUint32(at + 8),
    uid: view.getUint32(at + 12),
    gid: view.getUint32(at + 16),
    size: view.getUint32(at + 20) * 0x1_0000_0000 + view.getUint32(at + 24),
    used: view.getUint32(at + 28) * 0x1_0000_0000 + view.getUint32(at + 32),
    major: view.getUint32(at + 36),
    minor: view.getUint32(at + 40),
    fsid: view.getBigUint64(at + 44),
    fileId: view.getBigUint64(at + 52),
    atime: view.getUint32(at + 60),
    atimeNs: view.getUint32(at + 64),
    mtime: view.getUint32(at + 68),
    mtimeNs: view.getUint32(at + 72),
    ctime: view.getUint32(at + 76),
    ctimeNs: view.getUint32(at + 80),
  };
}

/** Writes each field at its offset, for speed: a listing has thousands of them. */
export function writeAttributes(writer: XdrWriter, a: Attributes): void {
  writer.reserve(attributesBytes);
  const { view, offset: at } = writer;
  view.setUint32(at, a.type);
  view.setUint32(at + 4, a.mode);
  view.setUint32(at + 8, a.links);
  view.setUint32(at + 12, a.uid);
  view.setUint32(at + 16, a.gid);
  view.setUint32(at + 20, Math.floor(a.size / 0x1_0000_0000));
  view.setUint32(at + 24, a.size >>> 0);
  view.setUint32(at + 28, Math.floor(a.used / 0x1_0000_0000));
  view.setUint32(at + 32, a.used >>> 0);
  view.setUint32(at + 36, a.major);
  view.setUint32(at + 40, a.minor);
  view.setBigUint64(at + 44, a.fsid);
  view.setBigUint64(at + 52, a.fileId);
  view.setUint32(at + 60, a.atime);
  view.setUint32(at + 64, a.atimeNs);
  view.setUint32(at + 68, a.mtime);
  view.setUint32(at + 72, a.mtimeNs);
  view.setUint32(at + 76, a.ctime);
  view.setUint32(at + 80, a.ctimeNs);
  writer.offset = at + attributesBytes;
}

export const readPostAttributes = (reader: XdrReader): Attributes | undefined =>
  reader.bool() ? readAttributes(reader) : undefined;

export function writePostAttributes(writer: XdrWriter, attributes: Attributes | undefined): void {
  writer.bool(attributes !== undefined);
  if (attributes !== undefined) writeAttributes(writer, attributes);
}

/** wcc_attr: the attributes that show whether a file changed. */
export interface WccAttr {
  readonly size: number;
  readonly mtime: number;
  readonly mtimeNs: number;
  readonly ctime: number;
  readonly ctimeNs: number;
}

/**
 * wcc_data: the attributes before and after a call. If `before` matches the client's cache, no other client has changed the
 * object.
 */
export interface Wcc {
  readonly before: WccAttr | undefined;
  readonly after: Attributes | undefined;
}

function readWccAttr(reader: XdrReader): WccAttr {
  const { view } = reader;
  const at = reader.skipBytes(24);
  return {
    size: view.getUint32(at) * 0x1_0000_0000 + view.getUint32(at + 4),
    mtime: view.getUint32(at + 8),
    mtimeNs: view.getUint32(at + 12),
    ctime: view.getUint32(at + 16),
    ctimeNs: view.getUint32(at + 20),
  };
}

export function readWcc(reader: XdrReader): Wcc {
  const before = reader.bool() ? readWccAttr(reader) : undefined;
  return { before, after: readPostAttributes(reader) };
}

export function writeWcc(writer: XdrWriter, after: Attributes | undefined): void {
  writer.bool(false);
  writePostAttributes(writer, after);
}

/** A copy: a view would keep the whole receive buffer in memory, and its bytes would change. */
export const readHandle = (reader: XdrReader): FileHandle => reader.shortOpaque(maxHandleBytes);

export const readPostHandle = (reader: XdrReader): FileHandle | undefined =>
  reader.bool() ? readHandle(reader) : undefined;

export function writePostHandle(writer: XdrWriter, handle: FileHandle | undefined): void {
  writer.bool(handle !== undefined);
  if (handle !== undefined) writer.opaque(handle);
}

/** sattr3. Attributes that are left out do not change. */
export interface SetAttributes {
  readonly mode?: number | undefined;
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
  readonly size?: number | undefined;
  /** `now`: the server's own clock. */
  readonly atime?: Time | 'now' | undefined;
  readonly mtime?: Time | 'now' | undefined;
}

const writeOptional = (writer: XdrWriter, value: number | undefined): void => {
  writer.bool(value !== undefined);
  if (value !== undefined) writer.u32(value);
};

function writeSetTime(writer: XdrWriter, time: Time | 'now' | undefined): void {
  if (time === undefined) writer.u32(0);
  else if (time === 'now') writer.u32(1);
  else writer.u32(2).u32(time.seconds).u32(time.nanoseconds);
}

function readSetTime(reader: XdrReader): Time | 'now' | undefined {
  const kind = reader.u32();
  if (kind === 0) return undefined;
  if (kind === 1) return 'now';
  if (kind === 2) return { seconds: reader.u32(), nanoseconds: reader.u32() };
  throw new XdrError(`${kind} is not a time_how`);
}

export function writeSetAttributes(writer: XdrWriter, set: SetAttributes): void {
  writeOptional(writer, set.mode);
  writeOptional(writer, set.uid);
  writeOptional(writer, set.gid);
  writer.bool(set.size !== undefined);
  if (set.size !== undefined) writer.size(set.size);
  writeSetTime(writer, set.atime);
  writeSetTime(writer, set.mtime);
}

export function readSetAttributes(reader: XdrReader): SetAttributes {
  const number = (): number | undefined => (reader.bool() ? reader.u32() : undefined);
  const [mode, uid, gid] = [number(), number(), number()];
  const size = reader.bool() ? reader.size() : undefined;
  return { mode, uid, gid, size, atime: readSetTime(reader), mtime: readSetTime(reader) };
}

/** diropargs3: a name in a directory. */
export interface DirOpArgs {
  readonly directory: FileHandle;
  readonly name: Text;
}

export function writeDirOpArgs(writer: XdrWriter, { directory, name }: DirOpArgs): void {
  writer.opaque(directory).string(name);
}

/** An entry of a directory. */
export interface Entry {
  readonly fileId: bigint;
  /** For display, and for calls if `bytes` is undefined. */
  readonly name: string;
  /** The exact name, if it is not valid UTF-8. */
  readonly bytes: Uint8Array | undefined;
  readonly cookie: bigint;
}

/**
 * Attributes and handle are getters that decode on each access, and are not own properties. Read them once, and do not spread the
 * entry.
 */
export interface EntryPlus extends Entry {
  readonly attributes: Attributes | undefined;
  readonly handle: FileHandle | undefined;
}

/** The name to use in a call. */
export const nameOf = ({ name, bytes }: Pick<Entry, 'name' | 'bytes'>): Text => bytes ?? name;

/** stable_how: what a WRITE has stored when it returns. */
export const stability = { unstable: 0, dataSync: 1, fileSync: 2 } as const;
