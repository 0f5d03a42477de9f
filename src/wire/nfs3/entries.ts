import type { XdrReader } from '../xdr/reader.ts';
import {
  type Attributes,
  attributesAt,
  attributesBytes,
  type Entry,
  type EntryPlus,
  type FileHandle,
  maxHandleBytes,
  maxNameBytes,
} from './structures.ts';

/** The result of one READDIR or READDIRPLUS. */
export interface DirectoryPage<E> {
  readonly verifier: bigint;
  readonly entries: readonly E[];
  readonly isEnd: boolean;
}

export function readDirectoryPage(reader: XdrReader): DirectoryPage<Entry> {
  const verifier = readHead(reader);
  const entries: Entry[] = [];
  while (reader.bool()) {
    const fileId = reader.u64();
    const { text, bytes } = reader.name(maxNameBytes);
    entries.push({ fileId, name: text, bytes, cookie: reader.u64() });
  }
  return { verifier, entries, isEnd: reader.bool() };
}

/** Skips the directory's attributes and returns the cookie verifier. */
function readHead(reader: XdrReader): bigint {
  if (reader.bool()) reader.skipBytes(attributesBytes);
  return reader.u64();
}

/**
 * An entry of a page that was copied as a whole. Attributes and handle are decoded when a caller reads them: to decode them for
 * each of thousands of entries costs twice as much as to decode the names. `readDirectoryPagePlus` has checked the page, so no
 * read goes beyond its end. A class, because its getters are created once and not for each entry.
 */
class PageEntry implements EntryPlus {
  readonly name: string;
  readonly bytes: Uint8Array | undefined;
  readonly #page: DataView;
  /** The offset of the entry, and the offset after its name, where the cookie is. */
  readonly start: number;
  readonly #on: number;

  constructor(page: DataView, at: number, { text, bytes }: ReturnType<XdrReader['name']>, on: number) {
    this.name = text;
    this.bytes = bytes;
    this.#page = page;
    this.start = at;
    this.#on = on;
  }

  get fileId(): bigint {
    return this.#page.getBigUint64(this.start);
  }

  get cookie(): bigint {
    return this.#page.getBigUint64(this.#on);
  }

  get attributes(): Attributes | undefined {
    return this.#page.getUint32(this.#on + 8) === 0 ? undefined : attributesAt(this.#page, this.#on + 12);
  }

  /** A copy, since a view would keep the page in memory. */
  get handle(): FileHandle | undefined {
    const page = this.#page;
    const at = this.#on + 12 + page.getUint32(this.#on + 8) * attributesBytes;
    if (page.getUint32(at) === 0) return undefined;
    const copy = new Uint8Array(page.getUint32(at + 4));
    for (let i = 0; i < copy.length; i++) copy[i] = page.getUint8(at + 8 + i);
    return copy;
  }
}

export function readDirectoryPagePlus(reader: XdrReader): DirectoryPage<EntryPlus> {
  const verifier = readHead(reader);
  const entries: EntryPlus[] = [];
  const from = reader.offset;
  // A copy, since the receiver's buffer is reused for the next reply.
  const page = new Uint8Array(reader.remaining);
  page.set(reader.buffer.subarray(from, reader.end));
  const view = new DataView(page.buffer);
  while (reader.bool()) {
    const at = reader.skipBytes(8) - from;
    const name = reader.name(maxNameBytes);
    const on = reader.skipBytes(8) - from;
    if (reader.bool()) reader.skipBytes(attributesBytes);
    if (reader.bool()) reader.skipOpaque(maxHandleBytes);
    entries.push(new PageEntry(view, at, name, on));
  }
  return { verifier, entries, isEnd: reader.bool() };
}
