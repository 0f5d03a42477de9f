import { XdrError, XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import { authNone, authSys, authTls, callType, type Identity, maxAuthBytes, maxGroups } from './message.ts';
import type { ReplyWriter } from './replay-cache.ts';
import type { Caller } from './server.ts';

/** The header of a call as a server reads it. The reader reuses one object for all calls. */
export interface ReceivedCall {
  xid: number;
  rpcVersion: number;
  program: number;
  version: number;
  procedure: number;
  isTlsProbe: boolean;
  /** Undefined: an unsupported auth flavor, or a malformed credential. */
  caller: Caller | undefined;
}

/**
 * Reads the call headers of one connection. Nearly all calls carry the same credential. So the reader compares the bytes with
 * the credential of the previous call, which is far cheaper than parsing, and returns the same caller object.
 */
export function createCallReader(connection: Omit<Caller, 'identity'>): (reader: XdrReader) => ReceivedCall {
  const call: ReceivedCall = {
    xid: 0,
    rpcVersion: 0,
    program: 0,
    version: 0,
    procedure: 0,
    isTlsProbe: false,
    caller: undefined,
  };
  let lastCredential: Buffer | undefined;
  let lastCaller: Caller | undefined;

  function parseCaller(flavor: number, body: Buffer): Caller | undefined {
    if (flavor === authNone) return { ...connection, identity: undefined };
    const identity = flavor === authSys ? readIdentity(body) : undefined;
    return identity && { ...connection, identity };
  }

  function readCaller(reader: XdrReader): Caller | undefined {
    const { offset: at } = reader;
    reader.skipBytes(4);
    reader.skipOpaque(maxAuthBytes);
    if (lastCredential !== undefined && bytesEqual(lastCredential, reader.buffer, at, reader.offset)) return lastCaller;
    lastCredential = Buffer.from(reader.buffer.subarray(at, reader.offset));
    lastCaller = parseCaller(
      lastCredential.readUInt32BE(0),
      lastCredential.subarray(8, 8 + lastCredential.readUInt32BE(4)),
    );
    return lastCaller;
  }

  return (reader) => {
    const { view } = reader;
    const at = reader.skipBytes(24);
    call.xid = view.getUint32(at);
    if (view.getUint32(at + 4) !== callType) throw new XdrError('received a reply where a call was expected');
    call.rpcVersion = view.getUint32(at + 8);
    call.program = view.getUint32(at + 12);
    call.version = view.getUint32(at + 16);
    call.procedure = view.getUint32(at + 20);
    call.isTlsProbe = call.procedure === 0 && reader.remaining >= 4 && view.getUint32(reader.offset) === authTls;
    call.caller = readCaller(reader);
    reader.skipBytes(4);
    reader.skipOpaque(maxAuthBytes);
    return call;
  };
}

function bytesEqual(expected: Buffer, buffer: Buffer, from: number, end: number): boolean {
  if (expected.length !== end - from) return false;
  for (let i = 0; i < expected.length; i++) if (expected[i] !== buffer[from + i]) return false;
  return true;
}

function readIdentity(body: Buffer): Identity | undefined {
  try {
    const view = new DataView(body.buffer, body.byteOffset, body.length);
    const reader = new XdrReader().reset(body, view, 0, body.length);
    reader.u32();
    const machine = reader.string(255);
    const [uid, gid, count] = [reader.u32(), reader.u32(), reader.u32()];
    if (count > maxGroups) return undefined;
    return { machine, uid, gid, groups: Array.from({ length: count }, () => reader.u32()) };
  } catch {
    return undefined;
  }
}

/** Writes an accepted_reply (RFC 5531, section 9), without the xid and the message type before it. */
export const writeAcceptedHead = (writer: XdrWriter, status: number): XdrWriter =>
  writer.u32(0).u32(authNone).u32(0).u32(status);

export const acceptErrorReply =
  (status: number, ...more: readonly number[]): ReplyWriter =>
  (writer) => {
    writeAcceptedHead(writer, status);
    for (const word of more) writer.u32(word);
    return undefined;
  };

const deniedReply =
  (...words: readonly number[]): ReplyWriter =>
  (writer) => {
    writer.u32(1);
    for (const word of words) writer.u32(word);
    return undefined;
  };

export const rpcMismatch = deniedReply(0, 2, 2);
export const authBadCredential = deniedReply(1, 1);
export const authTooWeak = deniedReply(1, 5);
export const startTlsReply: ReplyWriter = (writer) => {
  writer.u32(0).u32(authNone).opaque(Buffer.from('STARTTLS')).u32(0);
  return undefined;
};
