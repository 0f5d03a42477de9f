import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { streamOver } from '#base/socket-stream.ts';
import { createHpackDecoder, encodeLiterally, type HeaderField } from './hpack.ts';

/**
 * Go's gRPC clients may send the path of the socket as `:authority`, as it is. Node's HTTP/2 refuses a slash in it, and with it
 * the whole request, before anybody here could see it. So a connection is read before Node does: what is in it is passed
 * on unchanged, until such a header comes; from then on all header blocks of the connection are written anew.
 */
export const withAcceptableAuthority = (socket: Socket): Duplex =>
  streamOver(socket, { filter: createAuthorityFilter() });

const prefaceBytes = 24;
const frameHeaderBytes = 9;
const headersType = 1;
const continuationType = 9;
const endHeaders = 0x4;
const padded = 0x8;
const withPriority = 0x20;
/** RFC 9113, section 6.5.2: nobody has been told that frames may be larger. */
const mostFrameBytes = 16_384;
const mostBlockBytes = 65_536;
const mostFrames = 16;

/** What nghttp2 lets pass. */
const acceptable = /^[!$%&'()*+,\-.0-9:;=@A-Z[\]_a-z~]+$/;
const instead = 'localhost';

interface Block {
  readonly stream: number;
  readonly flags: number;
  /** As they came. */
  readonly frames: Buffer[];
  readonly fragments: Buffer[];
  bytes: number;
}

/** The bytes of one connection, in the pieces in which they come. Throws for what no peer may send. */
export function createAuthorityFilter(): (chunk: Buffer) => readonly Buffer[] {
  const decoder = createHpackDecoder(mostBlockBytes);
  let rest: Buffer = Buffer.alloc(0);
  /** So many bytes are nothing to us. */
  let passing = prefaceBytes;
  let block: Block | undefined;
  let isRewriting = false;

  function ended({ stream, flags, frames, fragments }: Block): readonly Buffer[] {
    const fields = decoder.decode(Buffer.concat(fragments));
    const isRefused = ([name, value]: HeaderField): boolean =>
      (name === ':authority' || name === 'host') && !acceptable.test(value);
    // Once begun it goes on: what comes later may refer to what is no longer said.
    isRewriting ||= fields.some(isRefused);
    if (!isRewriting) return frames;
    const anew = fields.map((field): HeaderField => (isRefused(field) ? [field[0], instead] : field));
    return framesOf(stream, flags & ~(endHeaders | padded | withPriority), encodeLiterally(anew));
  }

  /** A frame that belongs to a header block. */
  function taken(frame: Buffer): readonly Buffer[] {
    const { type, flags, stream } = headerOf(frame);
    if (type === headersType) block = { stream, flags, frames: [], fragments: [], bytes: 0 };
    if (block === undefined || block.stream !== stream) throw new Error('a header block goes on where none began');
    const fragment = type === headersType ? fragmentOf(frame, flags) : frame.subarray(frameHeaderBytes);
    block.frames.push(frame);
    block.fragments.push(fragment);
    block.bytes += fragment.length;
    if (block.bytes > mostBlockBytes || block.frames.length > mostFrames) throw new Error('the headers are too large');
    if ((flags & endHeaders) === 0) return [];
    const whole = block;
    block = undefined;
    return ended(whole);
  }

  return (chunk) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    const out: Buffer[] = [];
    while (rest.length > 0) {
      if (passing > 0) {
        const piece = rest.subarray(0, passing);
        out.push(piece);
        passing -= piece.length;
        rest = rest.subarray(piece.length);
        continue;
      }
      if (rest.length < frameHeaderBytes) break;
      const { length, type } = headerOf(rest);
      const isOfBlock = type === headersType || type === continuationType;
      if (block !== undefined && type !== continuationType) throw new Error('a header block is interrupted');
      if (!isOfBlock) {
        passing = frameHeaderBytes + length;
        continue;
      }
      if (length > mostFrameBytes) throw new Error('a frame is too large');
      if (rest.length < frameHeaderBytes + length) break;
      out.push(...taken(rest.subarray(0, frameHeaderBytes + length)));
      rest = rest.subarray(frameHeaderBytes + length);
    }
    // A view would keep all that came with it in memory.
    rest = Buffer.from(rest);
    return out;
  };
}

const headerOf = (frame: Buffer) => ({
  length: frame.readUIntBE(0, 3),
  type: frame.readUInt8(3),
  flags: frame.readUInt8(4),
  stream: frame.readUInt32BE(5) & 0x7fffffff,
});

/** RFC 9113, section 6.2: without padding and priority. */
function fragmentOf(frame: Buffer, flags: number): Buffer {
  let from = frameHeaderBytes;
  let to = frame.length;
  if ((flags & padded) !== 0) {
    to -= frame[from] ?? 0;
    from++;
  }
  if ((flags & withPriority) !== 0) from += 5;
  if (from > to) throw new Error('a frame is all padding');
  return frame.subarray(from, to);
}

function framesOf(stream: number, flags: number, block: Buffer): readonly Buffer[] {
  const frames: Buffer[] = [];
  for (let at = 0; at === 0 || at < block.length; at += mostFrameBytes) {
    const piece = block.subarray(at, at + mostFrameBytes);
    const header = Buffer.alloc(frameHeaderBytes);
    header.writeUIntBE(piece.length, 0, 3);
    header.writeUInt8(at === 0 ? headersType : continuationType, 3);
    header.writeUInt8((at === 0 ? flags : 0) | (at + piece.length >= block.length ? endHeaders : 0), 4);
    header.writeUInt32BE(stream, 5);
    frames.push(header, piece);
  }
  return frames;
}
