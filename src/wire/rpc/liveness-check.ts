import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import type { Connection, RecordHandlers } from './connection.ts';
import { callType, rpcVersion } from './message.ts';
import type { Procedure } from './procedure.ts';
import type { Encode } from './sender.ts';

/** The program and version to send NULL to. Procedure 0 of every program does nothing. */
export type NullTarget = Pick<Procedure<unknown, unknown>, 'program' | 'version'>;

export interface LivenessCheckOptions {
  readonly clock: Clock;
  readonly credential: Buffer;
  readonly connect: (handlers: RecordHandlers) => Promise<Connection>;
  readonly closing: AbortSignal;
}

/**
 * A connection can be dead without any error: a firewall dropped its state, or the machine at the other end was replaced. The
 * kernel keeps retransmitting for a quarter of an hour. But a server may also just be slow, and then the client must not drop the
 * connection. So the client sends NULL on the old connection and on a new one. If the server answers only on the new one, the
 * old one is dead.
 */
export interface LivenessCheck {
  /** True: dead. False: alive, or the new connection got no answer either. */
  isDead(connection: Connection, target: NullTarget, waitMs: number): Promise<boolean>;
}

/** Calls have xids of 31 bits, so this xid belongs to none of them and its reply is ignored. */
const nullXid = 0xffff_ffff;
/** How long to wait for bytes that are still in flight on the old connection. */
const lateReplyMs = 1_000;

export function createLivenessCheck({ clock, credential, connect, closing }: LivenessCheckOptions): LivenessCheck {
  const encode: Encode<NullTarget> = (writer: XdrWriter, { program, version }) => {
    writer.u32(nullXid).u32(callType).u32(rpcVersion).u32(program).u32(version).u32(0).fixedOpaque(credential);
    return undefined;
  };

  function sendNull({ sender }: Connection, target: NullTarget): void {
    sender.addRecord(encode, target);
    sender.flush();
  }

  /** Whether the server replies on a new connection. An error reply counts, too. */
  async function answersOnNewConnection(target: NullTarget, waitMs: number): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const newConnection = await connect({ onRecord: () => resolve(true) }).catch(() => undefined);
    if (newConnection === undefined) return false;
    using limit = clock.deadline(waitMs, closing);
    using _ = onAbort(limit.signal, () => resolve(false));
    void newConnection.ended.then(() => resolve(false));
    sendNull(newConnection, target);
    try {
      return await promise;
    } finally {
      newConnection.reset();
    }
  }

  return {
    isDead: async (connection, asked, waitMs) => {
      const receivedBefore = connection.receivedBytes;
      // If part of a record was received, its remaining bytes show that the connection is alive. The reply to NULL would
      // come only after them.
      if (!connection.isMidRecord) sendNull(connection, asked);
      if (!(await answersOnNewConnection(asked, waitMs))) return false;
      await clock.sleep(Math.min(lateReplyMs, waitMs), closing).catch(() => undefined);
      return connection.receivedBytes === receivedBefore && !closing.aborted;
    },
  };
}
