/** What was received does not follow the protocol: too short, too long, or a value that cannot be. */
export class XdrError extends Error {
  override readonly name = 'XdrError';
}

const replacement = '\ufffd';

/**
 * Reads XDR (RFC 4506) from bytes that somebody else sent: nothing is read beyond the end, no length is believed beyond
 * its bound. A class, against the habit of this code base, and one that is used again and again: decoding a reply costs
 * a few hundred nanoseconds, and an object with methods made for each of them would double that.
 */
export class XdrReader {
  buffer: Buffer = Buffer.alloc(0);
  view: DataView = new DataView(this.buffer.buffer, 0, 0);
  at = 0;
  end = 0;

  /** `view` covers the same memory as `buffer`: made once by the owner of the buffer, not for each message. */
  reset(buffer: Buffer, view: DataView, at: number, end: number): this {
    this.buffer = buffer;
    this.view = view;
    this.at = at;
    this.end = end;
    return this;
  }

  get left(): number {
    return this.end - this.at;
  }

  /** Throws unless that many bytes are there. Gives where they begin, and steps over them. */
  take(length: number): number {
    const from = this.at;
    if (length > this.end - from) throw new XdrError(`message ends ${length - (this.end - from)} bytes too early`);
    this.at = from + length;
    return from;
  }

  u32(): number {
    return this.view.getUint32(this.take(4));
  }

  i32(): number {
    return this.view.getInt32(this.take(4));
  }

  u64(): bigint {
    return this.view.getBigUint64(this.take(8));
  }

  /** A size or offset: 64 bits on the wire, at most 2^53 in any file we can read. */
  size(): number {
    const from = this.take(8);
    const high = this.view.getUint32(from);
    if (high > 0x1f_ffff) throw new XdrError('a size is beyond 2^53');
    return high * 0x1_0000_0000 + this.view.getUint32(from + 4);
  }

  bool(): boolean {
    const value = this.u32();
    if (value > 1) throw new XdrError(`${value} is neither true nor false`);
    return value === 1;
  }

  /** Gives where it begins; its length is `at` minus that, without the padding. */
  private takePadded(length: number): number {
    const from = this.take((length + 3) & ~3);
    return from;
  }

  private length(max: number): number {
    const length = this.u32();
    if (length > max) throw new XdrError(`${length} bytes where at most ${max} may be`);
    return length;
  }

  /** A copy, which may be kept. */
  opaque(max: number): Buffer {
    return Buffer.from(this.window(max));
  }

  /** A copy of a short one, byte by byte: faster than what Node and the engine do to copy a few. */
  short(max: number): Uint8Array {
    const length = this.length(max);
    const from = this.takePadded(length);
    const { buffer } = this;
    const copy = new Uint8Array(length);
    for (let i = 0; i < length; i++) copy[i] = buffer[from + i] as number;
    return copy;
  }

  /** The received bytes themselves: to be used before the next message is read. */
  window(max: number): Buffer {
    const length = this.length(max);
    const from = this.takePadded(length);
    return this.buffer.subarray(from, from + length);
  }

  /** Steps over an opaque. A window that nobody looks at would be an object made for nothing. */
  skip(max: number): void {
    this.takePadded(this.length(max));
  }

  fixed(length: number): Buffer {
    const from = this.takePadded(length);
    return Buffer.from(this.buffer.subarray(from, from + length));
  }

  string(max: number): string {
    const length = this.length(max);
    const from = this.takePadded(length);
    return this.buffer.toString('utf8', from, from + length);
  }

  private isAscii(from: number, end: number): boolean {
    const { buffer } = this;
    for (let i = from; i < end; i++) if ((buffer[i] as number) > 127) return false;
    return true;
  }

  /** A name as text, and as bytes where it is not valid UTF-8 and the text is only for showing. */
  name(max: number): { readonly text: string; readonly bytes: Buffer | undefined } {
    const length = this.length(max);
    const from = this.takePadded(length);
    // Nearly all names are ASCII, which is read in half the time when that is known.
    if (this.isAscii(from, from + length))
      return { text: this.buffer.toString('latin1', from, from + length), bytes: undefined };
    const text = this.buffer.toString('utf8', from, from + length);
    const bytes = text.includes(replacement) ? Buffer.from(this.buffer.subarray(from, from + length)) : undefined;
    return { text, bytes };
  }
}
