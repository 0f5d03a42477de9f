import type { Request } from '#wire/fuse/operations.ts';
import { stability } from '#wire/nfs3/structures.ts';
import { RpcError } from '#wire/rpc/errors.ts';
import { XdrError } from '#wire/xdr/reader.ts';
import { recordChange } from './attribute-cache.ts';
import { asErrno } from './errors.ts';
import { access } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import type { Piece, SendResult } from './pieces.ts';

/** The writer: the open file and the identity. */
export interface Writer {
  readonly fh: number;
  readonly uid: number;
  readonly gid: number;
}

/** Calls that send buffered writes; no request waits for them. They throw an Errno. */
export interface BackgroundWrites {
  send(id: number, piece: Piece<Writer>, options: { readonly stable: boolean }): Promise<SendResult>;
  commit(id: number, writer: Writer): Promise<{ readonly verifier: bigint }>;
  /** Stops sending and ignores further answers; resolves when no call is in flight. */
  stop(): Promise<void>;
}

export interface BackgroundWritesOptions {
  readonly maxWrite: number;
  /** `hard`: data are lost only if the server itself rejects them. */
  readonly isHard: boolean;
  /** Resolves when data may be sent. Undefined: now. */
  readonly ready: () => Promise<void> | undefined;
}

const neverAborts = new AbortController().signal;
const minPauseMs = 100;
const maxPauseMs = 5_000;

export function createBackgroundWrites(
  context: MountContext,
  { maxWrite, isHard, ready }: BackgroundWritesOptions,
): BackgroundWrites {
  const { nfs, server, attributes, clock } = context;
  let isStopped = false;
  let inFlight = 0;
  const idle = Promise.withResolvers<void>();
  const neverResolves = new Promise<never>(() => undefined);

  const requestOf = ({ uid, gid }: Writer): Request => ({
    uid,
    gid,
    pid: 0,
    slot: -1,
    resent: false,
    signal: neverAborts,
  });

  async function sendOnceReady<R>(call: () => Promise<R>): Promise<R> {
    await ready()?.catch(() => neverResolves);
    if (isStopped) return await neverResolves;
    inFlight++;
    try {
      return await call();
    } finally {
      if (--inFlight === 0 && isStopped) idle.resolve();
      if (isStopped) await neverResolves;
    }
  }

  /** With `hard`, retries while the server is unreachable, both for acknowledged writes and for waiting writers. */
  async function retryWhileHard<R>(call: () => Promise<R>): Promise<R> {
    for (let pause = minPauseMs; ; pause = Math.min(pause * 2, maxPauseMs)) {
      try {
        return await sendOnceReady(call);
      } catch (cause) {
        if (!isHard || !(cause instanceof RpcError)) throw asErrno(cause);
      }
      await clock.sleep(pause, neverAborts);
    }
  }

  const write = (id: number, offset: number, data: Uint8Array, stable: number, writer: Writer) => {
    const request = requestOf(writer);
    const call = () =>
      server.callOnOpenFile(
        ...([request, id, writer.fh] as const),
        (handle, options) => nfs.write(handle, offset, data, stable, options),
        access.write,
      );
    return recordChange(attributes, id, call, ({ change }) => change);
  };

  /** Undefined: the server restarted between two parts. */
  async function sendOnce(
    id: number,
    { offset, data, writer }: Piece<Writer>,
    stable: number,
  ): Promise<SendResult | undefined> {
    let sent: SendResult | undefined;
    let hasMixedVerifiers = false;
    for (let done = 0; done < data.length; ) {
      const part = data.subarray(done, done + maxWrite);
      const { count, committed, verifier } = await write(id, offset + done, part, stable, writer);
      if (count === 0) throw new XdrError('the server accepts no data');
      hasMixedVerifiers ||= sent !== undefined && sent.verifier !== verifier;
      sent = { isStable: committed !== stability.unstable && (sent?.isStable ?? true), verifier };
      done += count;
    }
    return hasMixedVerifiers && sent?.isStable === false ? undefined : sent;
  }

  return {
    send: async (id, piece, { stable }) => {
      const level = stable ? stability.fileSync : stability.unstable;
      for (;;) {
        const sent = await retryWhileHard(() => sendOnce(id, piece, level));
        if (sent !== undefined) return sent;
      }
    },
    commit: (id, writer) =>
      retryWhileHard(() => {
        const request = requestOf(writer);
        const call = () =>
          server.callOnOpenFile(
            ...([request, id, writer.fh] as const),
            (handle, options) => nfs.commit(handle, 0, 0, options),
            access.write,
          );
        return recordChange(attributes, id, call, ({ change }) => change);
      }),
    stop: async () => {
      isStopped = true;
      if (inFlight > 0) await idle.promise;
    },
  };
}
