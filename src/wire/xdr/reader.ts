/** The received data violate the protocol: they are too short, too long, or contain an invalid value. */
export class XdrError extends Error {
  override readonly name = 'XdrError';
}

const replacementCharacter = '\ufffd';

/**
 * Reads XDR (RFC 4506) from untrusted bytes: it never reads beyond the end, and bounds every length. It is a class, unlike most
 * of this code base, and its instances are reused: decoding a reply costs a few hundred nanoseconds, and an object with its own
 * methods for each reply would double that.
 */
export class XdrReader {
  buffer: Buffer = Buffer.alloc(0);
  view: DataView = new DataView(this.buffer.buffer, 0, 0);
  offset = 0;
  end = 0;

  /** `view` covers the same memory as `buffer`. The owner of the buffer creates it once, not for each message. */
  reset(buffer: Buffer, view: DataView, at: number, end: number): this {
    this.buffer = buffer;
    this.view = view;
    this.offset = at;
    this.end = end;
    return this;
  }

  get remaining(): number {
    return this.end - this.offset;
  }

  /** Skips that many bytes and returns the offset of the first one. Throws if there are fewer. */
  skipBytes(length: number): number {
    const from = this.offset;
    if (length > this.end - from) throw new XdrError(`message ends ${length - (this.end - from)} bytes too early`);
    this.offset = from + length;
    return from;
  }

  u32(): number {
    return this.view.getUint32(this.skipBytes(4));
  }

  i32(): number {
    return this.view.getInt32(this.skipBytes(4));
  }

  u64(): bigint {
    return this.view.getBigUint64(this.skipBytes(8));
  }

  /** A size or offset: 64 bits on the wire, at most 2^53 here. */
  size(): number {
    const from = this.skipBytes(8);
    const high = this.view.getUint32(from);
    if (high > 0x1f_ffff) throw new XdrError('a size is beyond 2^53');
    return high * 0x1_0000_0000 + this.view.getUint32(from + 4);
  }

  bool(): boolean {
    const value = this.u32();
    if (value > 1) throw new XdrError(`${value} is neither true nor false`);
    return value === 1;
  }

  /** Skips bytes and their padding; returns their offset. */
  private skipPadded(length: number): number {
    const from = this.skipBytes((length + 3) & ~3);
    return from;
  }

  private length(max: number): number {
    const length = this.u32();
    if (length > max) throw new XdrError(`${length} bytes, but at most ${max} are allowed`);
    return length;
  }

  /** A copy that the caller may keep. */
  opaque(max: number): Buffer {
    return Buffer.from(this.opaqueView(max));
  }

  /** Copies a short opaque byte by byte, which is faster for a few bytes than a copy by Node or V8. */
  shortOpaque(max: number): Uint8Array {
    const length = this.length(max);
    const from = this.skipPadded(length);
    const { buffer } = this;
    const copy = new Uint8Array(length);
    for (let i = 0; i < length; i++) copy[i] = buffer[from + i] as number;
    return copy;
  }

  /** A view of the received bytes, valid until the next message is read. */
  opaqueView(max: number): Buffer {
    const length = this.length(max);
    const from = this.skipPadded(length);
    return this.buffer.subarray(from, from + length);
  }

  /** Skips an opaque without creating a view for it. */
  skipOpaque(max: number): void {
    this.skipPadded(this.length(max));
  }

  fixedOpaque(length: number): Buffer {
    const from = this.skipPadded(length);
    return Buffer.from(this.buffer.subarray(from, from + length));
  }

  string(max: number): string {
    const length = this.length(max);
    const from = this.skipPadded(length);
    return this.buffer.toString('utf8', from, from + length);
  }

  private isAscii(from: number, end: number): boolean {
    const { buffer } = this;
    for (let i = from; i < end; i++) if ((buffer[i] as number) > 127) return false;
    return true;
  }

  /** Returns a name as text. If it is not valid UTF-8, returns its bytes, too, and the text is only for display. */
  name(max: number): { readonly text: string; readonly bytes: Buffer | undefined } {
    const length = this.length(max);
    const from = this.skipPadded(length);
    // Nearly all names are ASCII, which is decoded in half the time as latin1.
    if (this.isAscii(from, from + length))
      return { text: this.buffer.toString('latin1', from, from + length), bytes: undefined };
    const text = this.buffer.toString('utf8', from, from + length);
    const bytes = text.includes(replacementCharacter)
      ? Buffer.from(this.buffer.subarray(from, from + length))
      : undefined;
    return { text, bytes };
  }
}
