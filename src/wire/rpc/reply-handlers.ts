import { XdrReader } from '../xdr/reader.ts';
import type { RecordHandlers } from './connection.ts';
import { readReplyHead } from './message.ts';
import type { PendingCalls } from './pending-calls.ts';
import type { DirectRead } from './receiver.ts';
import type { Call } from './transport.ts';

/** Callbacks for received replies. */
interface ReplyEvents {
  /** A reply to a pending call was received. */
  answered(): void;
  /** The reply has a result, not an error. */
  decoded(call: Call, result: unknown): void;
  /** The call whose data are being received into the caller's buffer. Undefined: all of them have arrived. */
  receiving(call: Call | undefined): void;
  expectsHead(): boolean;
}

/** Passes replies to their pending calls. */
export function createReplyHandlers(
  pending: PendingCalls,
  drop: (call: Call) => void,
  { answered, decoded, receiving, expectsHead }: ReplyEvents,
): RecordHandlers {
  const reader = new XdrReader();

  function onHead(
    buffer: Buffer,
    view: DataView,
    from: number,
    receivedEnd: number,
    length: number,
  ): DirectRead | undefined {
    const call = receivedEnd - from < 4 ? undefined : pending.get(view.getUint32(from));
    if (call?.procedure.decodeHead === undefined) return undefined;
    try {
      reader.reset(buffer, view, from + 4, receivedEnd);
      readReplyHead(reader, call.procedure.name);
      const head = call.procedure.decodeHead(reader, call.args);
      // Data that would extend beyond their record are an error; it is reported once the whole record has arrived.
      if (head === undefined || reader.offset + head.target.length > from + length) return undefined;
      const onDataReceived = (): void => {
        answered();
        receiving(undefined);
        drop(call);
        call.resolve(head.result);
      };
      receiving(call);
      return { from: reader.offset, target: head.target, done: onDataReceived };
    } catch {
      // The header is incomplete or an error: decode the reply once all of it has arrived.
      return undefined;
    }
  }

  return {
    onHead,
    expectsHead,
    onRecord: (buffer, view, from, end) => {
      reader.reset(buffer, view, from, end);
      const call = pending.get(reader.u32());
      // The reply came after the call's deadline.
      if (call === undefined) return;
      answered();
      drop(call);
      try {
        readReplyHead(reader, call.procedure.name);
        const result = call.procedure.decode(reader, call.args, call.resent);
        decoded(call, result);
        call.resolve(result);
      } catch (cause) {
        call.reject(cause);
      }
    },
  };
}
