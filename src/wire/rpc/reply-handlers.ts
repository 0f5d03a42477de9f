import { XdrReader } from '../xdr/reader.ts';
import type { RecordHandlers } from './connection.ts';
import { readReplyHead } from './message.ts';
import type { PendingCalls } from './pending-calls.ts';
import type { DirectRead } from './receiver.ts';
import type { Call } from './transport.ts';

/** What a lane wants to know of the replies. */
interface ReplyEvents {
  /** It was the reply to a call. */
  answered(): void;
  /** It said yes. */
  decoded(call: Call, result: unknown): void;
  /** Undefined: all of it has arrived. */
  receiving(call: Call | undefined): void;
  expectsHead(): boolean;
}

/** Gives replies to the calls that wait for them. */
export function createReplyHandlers(
  pending: PendingCalls,
  drop: (call: Call) => void,
  { answered, decoded, receiving, expectsHead }: ReplyEvents,
): RecordHandlers {
  const reader = new XdrReader();

  function onHead(buffer: Buffer, view: DataView, from: number, have: number, length: number): DirectRead | undefined {
    const call = have - from < 4 ? undefined : pending.get(view.getUint32(from));
    if (call?.procedure.decodeHead === undefined) return undefined;
    try {
      reader.reset(buffer, view, from + 4, have);
      readReplyHead(reader, call.procedure.name);
      const found = call.procedure.decodeHead(reader, call.args);
      // Data that would go on after their record are an error, which is found when all of it is there.
      if (found === undefined || reader.at + found.target.length > from + length) return undefined;
      const done = (): void => {
        answered();
        receiving(undefined);
        drop(call);
        call.resolve(found.result);
      };
      receiving(call);
      return { from: reader.at, target: found.target, done };
    } catch {
      // Not all of the head is there yet, or it is an error: decoded when all of it has arrived.
      return undefined;
    }
  }

  return {
    onHead,
    expectsHead,
    onRecord: (buffer, view, from, end) => {
      reader.reset(buffer, view, from, end);
      const call = pending.get(reader.u32());
      // Late, after its deadline: nobody waits for it.
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
