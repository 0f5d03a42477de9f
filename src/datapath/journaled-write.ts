import { outHeaderSize } from '#wire/fuse/abi.ts';
import { createReplyBuffer, putU32 } from '#wire/fuse/encode.ts';
import { header, type Message, readBytes, u32, u64 } from '#wire/fuse/message.ts';
import type { AcknowledgedWrite } from './ports.ts';

/** Decodes a WRITE from the journal. */
export const readJournaledWrite = (place: number, message: Message): AcknowledgedWrite => ({
  place,
  node: header.node(message),
  uid: header.uid(message),
  gid: header.gid(message),
  fh: u64(message, 0),
  offset: u64(message, 8),
  data: readBytes(message, 40, u32(message, 16)),
});

/** The reply that all bytes were written. */
export function writeReply({ view }: Message, length: number): Buffer {
  const out = createReplyBuffer(outHeaderSize + 8);
  out.view.setUint32(0, outHeaderSize + 8, true);
  out.view.setUint32(8, view.getUint32(8, true), true);
  out.view.setUint32(12, view.getUint32(12, true), true);
  putU32(out, outHeaderSize, length);
  return out.buffer;
}
