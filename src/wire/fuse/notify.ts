import { notifyCode, outHeaderSize } from './abi.ts';
import { createReplyBuffer, type ReplyBuffer } from './encode.ts';
import { setU64 } from './message.ts';

/** Notifications to the kernel. Each function returns a whole message for the device. */

/**
 * Invalidates the cached attributes of a node; with `data`, its cached pages, too. The kernel waits for pages that are being
 * read. So a thread that answers READs must not write this notification: it would deadlock. Without `data` the kernel never
 * waits.
 */
export function invalidateInode(node: number, data?: { readonly offset: number; readonly length: number }): Buffer {
  const out = message(notifyCode.invalInode, 24);
  setU64(out.view, outHeaderSize, node);
  out.view.setBigInt64(outHeaderSize + 8, data === undefined ? -1n : BigInt(data.offset), true);
  out.view.setBigInt64(outHeaderSize + 16, BigInt(data?.length ?? 0), true);
  return out.buffer;
}

/** Invalidates a cached name. Takes the directory's lock in the kernel: see the README on deadlocks. */
export function invalidateEntry(parent: number, name: Uint8Array, options: { readonly expireOnly: boolean }): Buffer {
  const out = message(notifyCode.invalEntry, 16 + name.length + 1);
  setU64(out.view, outHeaderSize, parent);
  out.view.setUint32(outHeaderSize + 8, name.length, true);
  out.view.setUint32(outHeaderSize + 12, options.expireOnly ? 1 : 0, true);
  out.buffer.set(name, outHeaderSize + 16);
  return out.buffer;
}

/** Asks the kernel to resend requests that were read and not answered (Linux 6.9). */
export const resend = (): Buffer => message(notifyCode.resend, 0).buffer;

function message(code: number, size: number): ReplyBuffer {
  const out = createReplyBuffer(outHeaderSize + size);
  out.view.setUint32(0, outHeaderSize + size, true);
  // In a notification the error field has the code, and the unique number is 0.
  out.view.setInt32(4, code, true);
  return out;
}
