import { XdrError } from './reader.ts';

/** Strings up to this length are copied character by character, which is faster than a call into Node for short ASCII. */
const maxShortString = 64;
/** Bytes up to this length are copied one by one. */
const maxShortBytes = 64;

/** A name or path: text, or bytes if it is not UTF-8. */
export type Text = string | Uint8Array;

/** Writes XDR (RFC 4506) into one buffer that grows as needed. A class for the same reason as XdrReader: every call uses a writer. */
export class XdrWriter {
  buffer: Buffer;
  view: DataView;
  offset = 0;

  constructor(size = 64 * 1024) {
    this.buffer = Buffer.allocUnsafeSlow(size);
    this.view = new DataView(this.buffer.buffer);
  }

  get written(): Buffer {
    return this.buffer.subarray(0, this.offset);
  }

  /** Ensures room for that many more bytes. */
  reserve(bytes: number): void {
    if (this.offset + bytes <= this.buffer.length) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(this.buffer.length * 2, this.offset + bytes));
    this.buffer.copy(larger, 0, 0, this.offset);
    this.buffer = larger;
    this.view = new DataView(larger.buffer);
  }

  u32(value: number): this {
    this.reserve(4);
    this.view.setUint32(this.offset, value);
    this.offset += 4;
    return this;
  }

  i32(value: number): this {
    return this.u32(value >>> 0);
  }

  u64(value: bigint): this {
    this.reserve(8);
    this.view.setBigUint64(this.offset, value);
    this.offset += 8;
    return this;
  }

  size(value: number): this {
    if (!Number.isSafeInteger(value) || value < 0) throw new XdrError(`${value} is not a size`);
    this.reserve(8);
    this.view.setUint32(this.offset, Math.floor(value / 0x1_0000_0000));
    this.view.setUint32(this.offset + 4, value >>> 0);
    this.offset += 8;
    return this;
  }

  bool(value: boolean): this {
    return this.u32(value ? 1 : 0);
  }

  /** Fixed-length opaque, without a length. */
  fixedOpaque(bytes: Uint8Array): this {
    const { length } = bytes;
    this.reserve(length + 3);
    const { buffer, offset: at } = this;
    if (length <= maxShortBytes) for (let i = 0; i < length; i++) buffer[at + i] = bytes[i] as number;
    else buffer.set(bytes, at);
    this.offset = at + length;
    return this.pad(length);
  }

  opaque(bytes: Uint8Array): this {
    return this.u32(bytes.length).fixedOpaque(bytes);
  }

  string(text: Text): this {
    if (typeof text !== 'string') return this.opaque(text);
    this.reserve(4 + text.length * 3 + 3);
    const { buffer, offset: at } = this;
    const length = this.writeAscii(text) ? text.length : buffer.write(text, at + 4);
    this.view.setUint32(at, length);
    this.offset = at + 4 + length;
    return this.pad(length);
  }

  /** Writes an opaque from a string with one character per byte. */
  latin1(bytes: string): this {
    return this.u32(bytes.length).rawLatin1(bytes).pad(bytes.length);
  }

  /** Writes the bytes of a string with one character per byte, without length and padding. */
  rawLatin1(bytes: string): this {
    const { length } = bytes;
    this.reserve(length + 3);
    const { buffer, offset: at } = this;
    if (length <= maxShortString) for (let i = 0; i < length; i++) buffer[at + i] = bytes.charCodeAt(i);
    else buffer.write(bytes, at, 'latin1');
    this.offset = at + length;
    return this;
  }

  private writeAscii(text: string): boolean {
    const { buffer, offset: at } = this;
    if (text.length > maxShortString) return false;
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      if (code > 127) return false;
      buffer[at + 4 + i] = code;
    }
    return true;
  }

  /** Pads with zeros to a multiple of four bytes; the room is already reserved. */
  pad(length: number): this {
    for (let rest = length & 3; rest > 0 && rest < 4; rest++) this.buffer[this.offset++] = 0;
    return this;
  }
}
