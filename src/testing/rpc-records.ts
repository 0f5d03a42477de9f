import type { Socket } from 'node:net';

/** One RPC record, including its record mark. */
export interface RpcRecord {
  readonly bytes: Buffer;
  readonly xid: number;
}

/** Splits a stream into records. The clients and servers of these tests use one fragment per record. */
export function onRecords(socket: Socket, onRecord: (record: RpcRecord) => void): void {
  let have = Buffer.alloc(0);
  socket.on('data', (chunk: Buffer) => {
    have = Buffer.concat([have, chunk]);
    for (;;) {
      const length = have.length < 4 ? Number.POSITIVE_INFINITY : 4 + (have.readUInt32BE() & 0x7fff_ffff);
      if (have.length < length) return;
      const bytes = have.subarray(0, length);
      have = have.subarray(length);
      onRecord({ bytes, xid: bytes.readUInt32BE(4) });
    }
  });
}

/** Reads the procedure number of a call, at byte 24: after record mark, xid, type, RPC version, program and version. */
export const procedureOf = ({ bytes }: RpcRecord): number => bytes.readUInt32BE(24);

/** Reads the NFS status of a reply, at byte 28: after record mark, xid, type, reply status, empty verifier and accept status. */
export const statusOf = ({ bytes }: RpcRecord): number => bytes.readUInt32BE(28);

export const uint32s = (...all: readonly number[]): Buffer => {
  const bytes = Buffer.alloc(all.length * 4);
  for (const [i, word] of all.entries()) bytes.writeUInt32BE(word >>> 0, i * 4);
  return bytes;
};

/** A message as a single last fragment. */
export const asRecord = (message: Buffer): Buffer => Buffer.concat([uint32s(0x8000_0000 | message.length), message]);

/** An accepted reply to that call with the given result words. */
export const reply = (xid: number, ...result: readonly number[]): Buffer =>
  asRecord(uint32s(xid, 1, 0, 0, 0, 0, ...result));

/** Connects the two sides of a proxy: when one socket closes, the other one is closed. */
export function joinSockets(open: Set<Socket>, client: Socket, server: Socket): void {
  for (const [one, other] of [
    [client, server],
    [server, client],
  ] as const) {
    open.add(one);
    one.setNoDelay(true);
    one.on('error', () => undefined);
    one.on('close', () => {
      open.delete(one);
      other.destroy();
    });
  }
}
