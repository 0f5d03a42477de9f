import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { streamOver } from '#base/socket-stream.ts';
import { createHpackDecoder, encodeAsLiterals, type HeaderField } from './hpack.ts';

/**
 * Go's gRPC clients may send the raw path of the socket as `:authority`. Node's HTTP/2 rejects the slashes in it, and the whole
 * request, before an application sees it. So this filter reads the connection before Node does. It passes all bytes through until
 * it finds such a header. From then on it rewrites all header blocks of the connection.
 */
export const withAcceptableAuthority = (socket: Socket): Duplex =>
  streamOver(socket, { filter: createAuthorityFilter() });

const prefaceBytes = 24;
const frameHeaderBytes = 9;
const headersFrame = 1;
const continuationFrame = 9;
const endHeadersFlag = 0x4;
const paddedFlag = 0x8;
const priorityFlag = 0x20;
/** RFC 9113, section 6.5.2: the default, since the server does not announce a larger limit. */
const maxFrameBytes = 16_384;
const maxBlockBytes = 65_536;
const maxFramesPerBlock = 16;

/** The characters that nghttp2 accepts. */
const nghttp2AuthorityPattern = /^[!$%&'()*+,\-.0-9:;=@A-Z[\]_a-z~]+$/;
const replacementAuthority = 'localhost';

interface HeaderBlock {
  readonly stream: number;
  readonly flags: number;
  /** The frames as they were received. */
  readonly frames: Buffer[];
  readonly fragments: Buffer[];
  bytes: number;
}

/** Filters the bytes of one connection, in the chunks in which they arrive. Throws on protocol violations. */
export function createAuthorityFilter(): (chunk: Buffer) => readonly Buffer[] {
  const decoder = createHpackDecoder(maxBlockBytes);
  let rest: Buffer = Buffer.alloc(0);
  /** The number of bytes to pass through unread. */
  let passThroughBytes = prefaceBytes;
  let block: HeaderBlock | undefined;
  let isRewriting = false;

  function finishBlock({ stream, flags, frames, fragments }: HeaderBlock): readonly Buffer[] {
    const fields = decoder.decode(Buffer.concat(fragments));
    const hasBadAuthority = ([name, value]: HeaderField): boolean =>
      (name === ':authority' || name === 'host') && !nghttp2AuthorityPattern.test(value);
    // Rewrite all later blocks, too: they may refer to table entries that were rewritten as literals.
    isRewriting ||= fields.some(hasBadAuthority);
    if (!isRewriting) return frames;
    const rewritten = fields.map(
      (field): HeaderField => (hasBadAuthority(field) ? [field[0], replacementAuthority] : field),
    );
    return encodeFrames(stream, flags & ~(endHeadersFlag | paddedFlag | priorityFlag), encodeAsLiterals(rewritten));
  }

  /** Adds a frame to a header block. Returns the frames to send once the block is complete. */
  function addFrame(frame: Buffer): readonly Buffer[] {
    const { type, flags, stream } = parseFrameHeader(frame);
    if (type === headersFrame) block = { stream, flags, frames: [], fragments: [], bytes: 0 };
    if (block === undefined || block.stream !== stream) throw new Error('a header block continues without a beginning');
    const fragment = type === headersFrame ? headerFragment(frame, flags) : frame.subarray(frameHeaderBytes);
    block.frames.push(frame);
    block.fragments.push(fragment);
    block.bytes += fragment.length;
    if (block.bytes > maxBlockBytes || block.frames.length > maxFramesPerBlock)
      throw new Error('the headers are too large');
    if ((flags & endHeadersFlag) === 0) return [];
    const completeBlock = block;
    block = undefined;
    return finishBlock(completeBlock);
  }

  return (chunk) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    const out: Buffer[] = [];
    while (rest.length > 0) {
      if (passThroughBytes > 0) {
        const piece = rest.subarray(0, passThroughBytes);
        out.push(piece);
        passThroughBytes -= piece.length;
        rest = rest.subarray(piece.length);
        continue;
      }
      if (rest.length < frameHeaderBytes) break;
      const { length, type } = parseFrameHeader(rest);
      const isHeaderFrame = type === headersFrame || type === continuationFrame;
      if (block !== undefined && type !== continuationFrame) throw new Error('a header block is interrupted');
      if (!isHeaderFrame) {
        passThroughBytes = frameHeaderBytes + length;
        continue;
      }
      if (length > maxFrameBytes) throw new Error('a frame is too large');
      if (rest.length < frameHeaderBytes + length) break;
      out.push(...addFrame(rest.subarray(0, frameHeaderBytes + length)));
      rest = rest.subarray(frameHeaderBytes + length);
    }
    // Copy the rest: a view would keep the whole chunk in memory.
    rest = Buffer.from(rest);
    return out;
  };
}

const parseFrameHeader = (frame: Buffer) => ({
  length: frame.readUIntBE(0, 3),
  type: frame.readUInt8(3),
  flags: frame.readUInt8(4),
  stream: frame.readUInt32BE(5) & 0x7fffffff,
});

/** RFC 9113, section 6.2: the fragment without padding and priority. */
function headerFragment(frame: Buffer, flags: number): Buffer {
  let from = frameHeaderBytes;
  let to = frame.length;
  if ((flags & paddedFlag) !== 0) {
    to -= frame[from] ?? 0;
    from++;
  }
  if ((flags & priorityFlag) !== 0) from += 5;
  if (from > to) throw new Error('a frame is all padding');
  return frame.subarray(from, to);
}

function encodeFrames(stream: number, flags: number, block: Buffer): readonly Buffer[] {
  const frames: Buffer[] = [];
  for (let at = 0; at === 0 || at < block.length; at += maxFrameBytes) {
    const piece = block.subarray(at, at + maxFrameBytes);
    const header = Buffer.alloc(frameHeaderBytes);
    header.writeUIntBE(piece.length, 0, 3);
    header.writeUInt8(at === 0 ? headersFrame : continuationFrame, 3);
    header.writeUInt8((at === 0 ? flags : 0) | (at + piece.length >= block.length ? endHeadersFlag : 0), 4);
    header.writeUInt32BE(stream, 5);
    frames.push(header, piece);
  }
  return frames;
}
