import type { XdrReader } from '../xdr/reader.ts';
import { XdrWriter } from '../xdr/writer.ts';
import { RpcError } from './errors.ts';

/** RFC 5531. */
export const rpcVersion = 2;
export const callType = 0;
export const replyType = 1;
export const authNone = 0;
export const authSys = 1;
/** RFC 9289: the auth flavor that asks the server for TLS. */
export const authTls = 7;
/** RFC 5531, section 8.2: an opaque_auth is at most this long. */
export const maxAuthBytes = 400;
/** RFC 5531, appendix A: the limit on groups; a server denies a call with more. */
export const maxGroups = 16;

/** The user that a call claims (AUTH_SYS). Servers trust the claim, or trust it from certain addresses or ports only. */
export interface Identity {
  readonly uid: number;
  readonly gid: number;
  /** The client sends the first 16 groups, which is the limit of the protocol. */
  readonly groups: readonly number[];
  readonly machine: string;
}

/** The credential and an empty verifier, encoded once for all calls of a connection. */
export function encodeCredential(identity: Identity | undefined): Buffer {
  const writer = new XdrWriter(maxAuthBytes + 16);
  if (identity === undefined) return writer.u32(authNone).u32(0).u32(authNone).u32(0).written;
  const { uid, gid, groups, machine } = identity;
  writer.u32(authSys);
  const lengthAt = writer.offset;
  writer.u32(0).u32(0).string(Buffer.from(machine).subarray(0, 255)).u32(uid).u32(gid);
  const sentGroups = groups.slice(0, maxGroups);
  writer.u32(sentGroups.length);
  for (const group of sentGroups) writer.u32(group);
  writer.view.setUint32(lengthAt, writer.offset - lengthAt - 4);
  return writer.u32(authNone).u32(0).written;
}

export const tlsProbeCredential = (): Buffer => new XdrWriter(16).u32(authTls).u32(0).u32(authNone).u32(0).written;

const acceptFailures: Readonly<Record<number, string>> = {
  1: 'the server does not have this program',
  2: 'the server does not have this version of the program',
  3: 'the server does not have this procedure',
  4: 'the server could not read the arguments',
  5: 'the server had an internal error',
};

/** RFC 5531, section 9: why the server rejected the authentication. */
const authFailures: Readonly<Record<number, string>> = {
  1: 'the credential is malformed (bad credential)',
  2: 'the credential was rejected',
  3: 'the verifier is malformed',
  4: 'the verifier was rejected',
  5: 'a stronger kind of authentication is required',
  6: 'the reply verifier is invalid',
  7: 'authentication failed',
};

/** Reads the header of a reply after its xid, up to the result. Throws the server's error if there is no result. */
export function readReplyHead(reader: XdrReader, procedureName: string): void {
  if (reader.u32() !== replyType)
    throw new RpcError(`${procedureName}: received a call where a reply was expected`, { failure: 'garbled' });
  if (reader.u32() !== 0) throw deniedError(reader, procedureName);
  reader.u32();
  reader.skipOpaque(maxAuthBytes);
  const status = reader.u32();
  if (status === 0) return;
  const why = acceptFailures[status] ?? `accept status ${status}`;
  const failure = status <= 2 ? 'unsupported' : status === 3 ? 'no-procedure' : 'garbled';
  throw new RpcError(`${procedureName}: ${why}`, { failure });
}

function deniedError(reader: XdrReader, procedureName: string): RpcError {
  const kind = reader.u32();
  if (kind === 0) {
    return new RpcError(`${procedureName}: the server speaks RPC versions ${reader.u32()} to ${reader.u32()}`, {
      failure: 'unsupported',
    });
  }
  const status = reader.u32();
  return new RpcError(`${procedureName}: ${authFailures[status] ?? `authentication status ${status}`}`, {
    failure: 'denied',
  });
}
