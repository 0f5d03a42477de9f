/** Encodes a value as DER (X.690). This file has only the types of ASN.1 that a certificate needs. */

function encodeValue(tag: number, ...parts: readonly Buffer[]): Buffer {
  const content = Buffer.concat(parts);
  return Buffer.concat([Buffer.from([tag, ...lengthOf(content.length)]), content]);
}

function lengthOf(bytes: number): readonly number[] {
  if (bytes < 0x80) return [bytes];
  const digits = bytes < 0x100 ? [bytes] : [bytes >> 8, bytes & 0xff];
  return [0x80 | digits.length, ...digits];
}

export const sequence = (...parts: readonly Buffer[]): Buffer => encodeValue(0x30, ...parts);
export const setOf = (...parts: readonly Buffer[]): Buffer => encodeValue(0x31, ...parts);
export const octetString = (content: Buffer): Buffer => encodeValue(0x04, content);
export const bitString = (content: Buffer): Buffer => encodeValue(0x03, Buffer.from([0]), content);
export const utf8String = (text: string): Buffer => encodeValue(0x0c, Buffer.from(text, 'utf8'));
export const derTrue = encodeValue(0x01, Buffer.from([0xff]));
/** Positive integers only. */
export const integer = (bytes: Buffer): Buffer =>
  encodeValue(0x02, (bytes[0] ?? 0) >= 0x80 ? Buffer.concat([Buffer.from([0]), bytes]) : bytes);
/** An explicit tag `[tag]` around a value. */
export const explicitTag = (tag: number, content: Buffer): Buffer => encodeValue(0xa0 | tag, content);
/** An implicit tag `[tag]`, in place of the type's own tag. */
export const implicitTag = (tag: number, content: Buffer): Buffer => encodeValue(0x80 | tag, content);

export function objectId(text: string): Buffer {
  const [first = 0, second = 0, ...rest] = text.split('.').map(Number);
  const base128 = (number: number): readonly number[] =>
    number < 0x80 ? [number] : [...base128(number >> 7).map((digit) => digit | 0x80), number & 0x7f];
  return encodeValue(0x06, Buffer.from([first * 40 + second, ...rest.flatMap((number) => [...base128(number)])]));
}

/** RFC 5280, section 4.1.2.5: UTCTime with a two-digit year until 2049, GeneralizedTime afterwards. */
export function encodeTime(ms: number): Buffer {
  const text = `${new Date(ms).toISOString().replaceAll(/[-:T]|\.\d+/g, '')}`;
  return Number(text.slice(0, 4)) < 2050
    ? encodeValue(0x17, Buffer.from(text.slice(2), 'ascii'))
    : encodeValue(0x18, Buffer.from(text, 'ascii'));
}
