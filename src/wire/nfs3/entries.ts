import type { XdrReader } from '../xdr/reader.ts';
import {
  type Attributes,
  attributesAt,
  attributesLength,
  type Entry,
  type EntryPlus,
  type FileHandle,
  maxHandle,
  maxName,
} from './structures.ts';

/** A page of a listing. */
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
    const { text, bytes } = reader.name(maxName);
    entries.push({ fileId, name: text, bytes, cookie: reader.u64() });
  }
  return { verifier, entries, isEnd: reader.bool() };
}

/** Steps over the directory's own attributes. Gives the verifier of its cookies. */
function readHead(reader: XdrReader): bigint {
  if (reader.bool()) reader.take(attributesLength);
  return reader.u64();
}

/**
 * An entry of a page that was copied as a whole: attributes and handle are read where somebody asks for them. To make all of
 * them for each of thousands of entries costs twice as much as to read the names. Everything was looked through before, so
 * nothing here lies beyond the page. A class for its getters, which are made once and not for each entry.
 */
class PageEntry implements EntryPlus {
  readonly name: string;
  readonly bytes: Uint8Array | undefined;
  readonly #page: DataView;
  /** Where the entry begins, and where it goes on behind its name. */
  readonly #at: number;
  readonly #on: number;

  constructor(page: DataView, at: number, { text, bytes }: ReturnType<XdrReader['name']>, on: number) {
    this.name = text;
    this.bytes = bytes;
    this.#page = page;
    this.#at = at;
    this.#on = on;
  }

  get fileId(): bigint {
    return this.#page.getBigUint64(this.#at);
  }

  get cookie(): bigint {
    return this.#page.getBigUint64(this.#on);
  }

  get attributes(): Attributes | undefined {
    return this.#page.getUint32(this.#on + 8) === 0 ? undefined : attributesAt(this.#page, this.#on + 12);
  }

  /** A copy: a view would keep the page. */
  get handle(): FileHandle | undefined {
    const page = this.#page;
    const at = this.#on + 12 + page.getUint32(this.#on + 8) * attributesLength;
    if (page.getUint32(at) === 0) return undefined;
    const copy = new Uint8Array(page.getUint32(at + 4));
    for (let i = 0; i < copy.length; i++) copy[i] = page.getUint8(at + 8 + i);
    return copy;
  }
}

export function readDirectoryPagePlus(reader: XdrReader): DirectoryPage<EntryPlus> {
  const verifier = readHead(reader);
  const entries: EntryPlus[] = [];
  const from = reader.at;
  // Its own memory: the receiver's is used for the next reply.
  const page = new Uint8Array(reader.left);
  page.set(reader.buffer.subarray(from, reader.end));
  const view = new DataView(page.buffer);
  while (reader.bool()) {
    const at = reader.take(8) - from;
    const name = reader.name(maxName);
    const on = reader.take(8) - from;
    if (reader.bool()) reader.take(attributesLength);
    if (reader.bool()) reader.skip(maxHandle);
    entries.push(new PageEntry(view, at, name, on));
  }
  return { verifier, entries, isEnd: reader.bool() };
}
