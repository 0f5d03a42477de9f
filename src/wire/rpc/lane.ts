import type { Clock } from '#base/clock.ts';
import { XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import type { Connection, Handlers } from './connection.ts';
import { RpcError } from './errors.ts';
import { messageCall, readReplyHead, rpcVersion } from './message.ts';
import type { Procedure } from './procedure.ts';
import type { Direct } from './receiver.ts';

/** A call from when it was asked for until its reply. */
export interface Call {
  readonly xid: number;
  readonly procedure: Procedure<unknown, unknown>;
  readonly args: unknown;
  readonly resolve: (value: unknown) => void;
  readonly reject: (cause: unknown) => void;
  /** By the clock's elapsed time. */
  readonly expires: number;
  sent: boolean;
  resent: boolean;
}

export interface LaneParts {
  readonly clock: Clock;
  readonly credential: Buffer;
  /** Makes a connection, to whichever address answers. */
  readonly connect: (handlers: Handlers) => Promise<Connection>;
  /** How often that is tried before the calls that wait fail. */
  readonly dialRounds: number;
  readonly closing: AbortSignal;
  /** A call has ended, in whatever way. */
  readonly onEnded: () => void;
}

/** One connection at a time, made anew when it breaks; calls without a reply are then sent again, under the same xid. */
export interface Lane {
  readonly pending: ReadonlyMap<number, Call>;
  start(call: Call): void;
  /** Nobody waits for its reply any more. */
  drop(call: Call): void;
  /** Nothing was heard since, though calls wait. */
  readonly silentSince: number | undefined;
  /** Tries another address. */
  reconnect(): void;
  close(): void;
}

const firstBackOffMs = 50;
const longestBackOffMs = 5_000;

export function createLane(parts: LaneParts): Lane {
  const { clock, credential, closing } = parts;
  const pending = new Map<number, Call>();
  let connection: Connection | undefined;
  let isDialing = false;
  let heardAt = 0;
  /** Its data are on their way straight into the caller's own buffer. */
  let receiving: Call | undefined;

  function drop(call: Call): void {
    // Given up in the middle: the buffer is the caller's again, so nothing more may be put into it. Node has been told
    // where the next bytes go and cannot be told otherwise, but for ending the connection.
    if (receiving === call) {
      receiving = undefined;
      connection?.close();
    }
    if (pending.delete(call.xid)) parts.onEnded();
  }

  function fail(call: Call, error: unknown): void {
    drop(call);
    call.reject(error);
  }

  const encode = (writer: XdrWriter, { xid, procedure, args }: Call): Uint8Array | undefined => {
    const { length } = credential;
    writer.reserve(24 + length);
    const { view, at } = writer;
    view.setUint32(at, xid);
    view.setUint32(at + 4, messageCall);
    view.setUint32(at + 8, rpcVersion);
    view.setUint32(at + 12, procedure.program);
    view.setUint32(at + 16, procedure.version);
    view.setUint32(at + 20, procedure.number);
    writer.buffer.set(credential, at + 24);
    writer.at = at + 24 + length;
    return procedure.encode(writer, args);
  };

  function send(call: Call): void {
    if (connection === undefined) return void keepConnected();
    try {
      connection.sender.record(encode, call);
      call.resent = call.sent;
      call.sent = true;
    } catch (cause) {
      // The arguments cannot be laid out: nothing was sent.
      fail(call, cause);
    }
  }

  const handlers = createHandlers(pending, drop, {
    heard: () => {
      heardAt = clock.elapsed();
    },
    receiving: (call) => {
      receiving = call;
    },
  });

  /** Connects, and sends what has no reply. */
  async function keepConnected(): Promise<void> {
    if (isDialing || closing.aborted) return;
    isDialing = true;
    let backOff = firstBackOffMs;
    for (let round = 1; connection === undefined && pending.size > 0; round++) {
      try {
        connection = await parts.connect(handlers);
      } catch (cause) {
        const isOver = isHopeless(cause) || closing.aborted;
        for (const call of pending.values()) {
          // What the server may have done already is asked for until its deadline: a restart takes a moment.
          if (isOver || (round >= parts.dialRounds && !call.sent)) fail(call, cannotConnect(cause, call.sent));
        }
        // Half of it at random: many clients shall not come back to a server at the same moment.
        if (pending.size > 0) await clock.sleep(backOff * (0.5 + Math.random() / 2), closing).catch(() => undefined);
        backOff = Math.min(backOff * 2, longestBackOffMs);
      }
    }
    isDialing = false;
    if (connection === undefined) return;
    heardAt = clock.elapsed();
    const current = connection;
    void current.ended.then((why) => lost(current, why));
    for (const call of pending.values()) send(call);
  }

  function lost(which: Connection, why: Error): void {
    which.close();
    if (connection !== which) return;
    connection = receiving = undefined;
    // A server that breaks the protocol would do so again.
    if (why instanceof RpcError && why.failure === 'garbled') for (const call of pending.values()) fail(call, why);
    if (pending.size > 0) void keepConnected();
  }

  return {
    pending,
    start: (call) => {
      if (pending.size === 0) heardAt = clock.elapsed();
      pending.set(call.xid, call);
      send(call);
    },
    drop,
    get silentSince() {
      return pending.size > 0 && connection !== undefined ? heardAt : undefined;
    },
    reconnect: () => connection?.close(),
    close: () => connection?.close(),
  };
}

interface Watching {
  heard(): void;
  /** Undefined: all of it has arrived. */
  receiving(call: Call | undefined): void;
}

function createHandlers(
  pending: ReadonlyMap<number, Call>,
  drop: (call: Call) => void,
  { heard, receiving }: Watching,
): Handlers {
  const reader = new XdrReader();

  function onHead(buffer: Buffer, view: DataView, from: number, have: number): Direct | undefined {
    const call = have - from < 4 ? undefined : pending.get(view.getUint32(from));
    if (call?.procedure.head === undefined) return undefined;
    try {
      reader.reset(buffer, view, from + 4, have);
      readReplyHead(reader, call.procedure.name);
      const found = call.procedure.head(reader, call.args);
      if (found === undefined) return undefined;
      const done = (): void => {
        heard();
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
    onRecord: (buffer, view, from, end) => {
      heard();
      reader.reset(buffer, view, from, end);
      const call = pending.get(reader.u32());
      // Late, after its deadline: nobody waits for it.
      if (call === undefined) return;
      drop(call);
      try {
        readReplyHead(reader, call.procedure.name);
        call.resolve(call.procedure.decode(reader, call.args, call.resent));
      } catch (cause) {
        call.reject(cause);
      }
    },
  };
}

const isHopeless = (cause: unknown): boolean => cause instanceof RpcError && cause.failure === 'tls';

function cannotConnect(cause: unknown, sent: boolean): RpcError {
  const failure = cause instanceof RpcError ? cause.failure : 'unreachable';
  const message = cause instanceof Error ? cause.message : String(cause);
  return new RpcError(message, {
    failure: sent && failure === 'unreachable' ? 'lost' : failure,
    maybeDone: sent,
    cause,
  });
}
