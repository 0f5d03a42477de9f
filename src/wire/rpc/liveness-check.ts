import type { Clock } from '#base/clock.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import type { Connection, RecordHandlers } from './connection.ts';
import { messageCall, rpcVersion } from './message.ts';
import type { Procedure } from './procedure.ts';
import type { Encode } from './sender.ts';

/** Which program to ask for a sign of life: every one has a procedure 0 that does nothing. */
export type NullTarget = Pick<Procedure<unknown, unknown>, 'program' | 'version'>;

export interface LivenessCheckOptions {
  readonly clock: Clock;
  readonly credential: Buffer;
  readonly connect: (handlers: RecordHandlers) => Promise<Connection>;
  readonly closing: AbortSignal;
}

/**
 * A connection can be dead without anybody having said so: a firewall forgot it, or the machine at its end was replaced.
 * The system goes on sending for a quarter of an hour. But a server may also just be slow, and must not be left for that. So
 * both are asked for a sign of life, this connection and a new one; only where the new one alone answers, this is dead.
 */
export interface LivenessCheck {
  /** True: it is dead. False: it is not, or there is nobody else to say so. */
  isDead(connection: Connection, asked: NullTarget, waitMs: number): Promise<boolean>;
}

/** Calls have xids of 31 bits: a reply with this one is nobody's, and is ignored where calls are waited for. */
const nullXid = 0xffff_ffff;
/** What came meanwhile may still be on its way. */
const graceMs = 1_000;

export function createLivenessCheck({ clock, credential, connect, closing }: LivenessCheckOptions): LivenessCheck {
  const encode: Encode<NullTarget> = (writer: XdrWriter, { program, version }) => {
    writer.u32(nullXid).u32(messageCall).u32(rpcVersion).u32(program).u32(version).u32(0).fixed(credential);
    return undefined;
  };

  function sendNull({ sender }: Connection, asked: NullTarget): void {
    sender.addRecord(encode, asked);
    sender.flush();
  }

  /** Whatever is answered is a sign of life, also a refusal. */
  async function answersOnNewConnection(asked: NullTarget, waitMs: number): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const other = await connect({ onRecord: () => resolve(true) }).catch(() => undefined);
    if (other === undefined) return false;
    using limit = clock.deadline(waitMs, closing);
    limit.signal.addEventListener('abort', () => resolve(false), { once: true });
    if (limit.signal.aborted) resolve(false);
    void other.ended.then(() => resolve(false));
    sendNull(other, asked);
    try {
      return await promise;
    } finally {
      other.reset();
    }
  }

  return {
    isDead: async (connection, asked, waitMs) => {
      const before = connection.receivedBytes;
      // In the middle of a record its rest is the sign of life: what came behind it could not be told from it.
      if (!connection.isMidRecord) sendNull(connection, asked);
      if (!(await answersOnNewConnection(asked, waitMs))) return false;
      await clock.sleep(Math.min(graceMs, waitMs), closing).catch(() => undefined);
      return connection.receivedBytes === before && !closing.aborted;
    },
  };
}
