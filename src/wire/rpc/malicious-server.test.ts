import { randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';
import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { startRawServer } from '#testing/fake-nfs.ts';
import { usedMemoryMib } from '#testing/memory.ts';
import { asRecord, onRecords, type RpcRecord, reply, uint32s } from '#testing/rpc-records.ts';
import { nullCall } from '../nfs3/procedures.ts';
import { createRpcClient } from './client.ts';
import { createReceiver } from './receiver.ts';

const handle = new Uint8Array(8);

/** Calls `answer` for every call. */
const answerWith =
  (answer: (call: RpcRecord, socket: Socket) => void) =>
  (socket: Socket): void =>
    onRecords(socket, (call) => answer(call, socket));
const answerCorrectly = answerWith(({ xid }, socket) => void socket.write(reply(xid)));

/** A reply to READ, without attributes and without the end flag. */
const readReply = (xid: number, data: Buffer): Buffer =>
  Buffer.concat([reply(xid, 0, 0, data.length, 0, data.length).subarray(4), data]);

describe('a server that', () => {
  test('accepts connections and never answers causes an error at the deadline, and other servers are not affected', async () => {
    const { nfs, rpc } = await startRawServer(() => undefined);
    const other = await startRawServer(answerCorrectly);
    const deadlineError = { failure: 'deadline', maybeDone: true };
    const waiting = expect(nfs.null({ deadlineMs: 2_000 })).rejects.toMatchObject(deadlineError);
    for (let i = 0; i < 20; i++) await other.nfs.null();
    await waiting;
    expect(rpc.pending).toBe(0);
  });

  test('closes every connection at once is not reconnected to without a pause', async () => {
    const raw = await startRawServer((socket) => socket.destroy());
    await expect(raw.nfs.null({ deadlineMs: 1_000 })).rejects.toMatchObject({ failure: 'deadline' });
    expect(raw.connections).toBeGreaterThan(2);
    expect(raw.connections).toBeLessThan(16);
    raw.onConnection = answerCorrectly;
    await raw.nfs.null();
  });

  test('sends an unexpected record and closes is not reconnected to without a pause either', async () => {
    const raw = await startRawServer(answerWith(({ xid }, socket) => void socket.end(reply(xid + 1))));
    await expect(raw.nfs.null({ deadlineMs: 800 })).rejects.toMatchObject({ failure: 'deadline' });
    expect(raw.connections).toBeLessThan(16);
  });

  test('is gone is retried with increasing backoff', async () => {
    let dials = 0;
    const localPort = (): number => {
      dials++;
      return 0;
    };
    const { port } = await startRawServer(() => undefined);
    const proxy = await startProxy({ host: '127.0.0.1', port });
    const rpc = createRpcClient({ clock: systemClock(), addresses: [proxy], localPort });
    onTestFinished(() => rpc.close());
    // The call is in flight when the server stops. Its outcome is unknown, so the client retries it until the deadline.
    const deadlineError = { failure: 'deadline', maybeDone: true };
    const call = expect(rpc.call(nullCall, undefined, { deadlineMs: 2_000 })).rejects.toMatchObject(deadlineError);
    await expect.poll(() => proxy.connections).toBe(1);
    await proxy.down();
    await call;
    expect(dials).toBeGreaterThan(2);
    expect(dials).toBeLessThan(16);
  });

  test('answers byte by byte is decoded', async () => {
    const raw = await startRawServer(
      answerWith(({ xid }, socket) => {
        void (async () => {
          for (const byte of asRecord(readReply(xid, Buffer.from('slow')))) {
            socket.write(Buffer.of(byte));
            await nextTurn();
          }
        })();
      }),
    );
    const destination = Buffer.alloc(4);
    expect(await raw.nfs.read(handle, 0, destination)).toMatchObject({ count: 4, isEnd: false });
    expect(destination.toString()).toBe('slow');
  });

  test('splits its records into fragments at any byte is decoded', async () => {
    let splitAt = 0;
    const raw = await startRawServer(
      answerWith(({ xid }, socket) => {
        const message = readReply(xid, Buffer.from('whole'));
        const [one, other] = [message.subarray(0, splitAt), message.subarray(splitAt)];
        socket.write(Buffer.concat([uint32s(one.length), one, asRecord(other)]));
      }),
    );
    for (; splitAt <= readReply(0, Buffer.from('whole')).length; splitAt++) {
      const destination = Buffer.alloc(5);
      await raw.nfs.read(handle, 0, destination);
      expect(destination.toString()).toBe('whole');
    }
  });

  test('sends noise fails the call, and the next one works', async () => {
    let noise: Buffer | undefined;
    const answer = answerWith(({ xid }, socket) => void socket.write(noise ?? reply(xid)));
    const { nfs } = await startRawServer(answer, { stallMs: 60 });
    for (let i = 0; i < 40; i++) {
      noise = randomBytes(1 + i * 97);
      // If the noise looks like the beginning of a long record, the client waits for the rest.
      await expect(nfs.null({ deadlineMs: 200 })).rejects.toMatchObject({ name: 'RpcError' });
      noise = undefined;
      await nfs.null({ deadlineMs: 2_000 });
    }
  });

  test('stops in the middle of a record is reconnected to after a call has passed its deadline', async () => {
    let isBroken = true;
    const answer = answerWith(({ xid }, socket) => void socket.write(reply(xid).subarray(0, isBroken ? 20 : 28)));
    const raw = await startRawServer(answer, { stallMs: 100 });
    await expect(raw.nfs.null({ deadlineMs: 1_000 })).rejects.toMatchObject({ failure: 'deadline' });
    isBroken = false;
    await raw.nfs.null({ deadlineMs: 2_000 });
    // The liveness check may have opened one more connection.
    expect(raw.connections).toBeGreaterThan(1);
  });
});

describe('the client bounds its memory if a server sends', () => {
  /** Sends chunks as fast as the client reads, until `mib` MiB are sent or the connection is closed. */
  async function sendWithoutEnd(socket: Socket, chunk: Buffer, mib: number): Promise<void> {
    for (let sent = 0; sent < mib * 2 ** 20 && !socket.destroyed; sent += chunk.length)
      if (!socket.write(chunk))
        await Promise.race([new Promise((resolve) => socket.once('drain', resolve)), delay(50)]);
  }

  const fragment = (length: number): Buffer => Buffer.concat([uint32s(length), Buffer.alloc(length)]);

  test.each([
    ['a record of 2 GiB', uint32s(0xffff_ffff), Buffer.alloc(65_536), 'garbled'],
    ['a record that is one byte too long', uint32s(0x8000_0000 | (2 ** 21 + 1)), Buffer.alloc(65_536), 'garbled'],
    ['endless fragments', Buffer.alloc(0), fragment(65_536), 'garbled'],
    ['endless empty fragments', Buffer.alloc(0), Buffer.alloc(65_536), 'deadline'],
  ])('%s', async (_, first, more, failure) => {
    let isWellBehaved = false;
    const answer = answerWith(({ xid }, socket) => {
      if (isWellBehaved) return void socket.write(reply(xid));
      socket.write(first);
      void sendWithoutEnd(socket, more, 64);
    });
    const raw = await startRawServer(answer, { stallMs: 100 });
    const before = usedMemoryMib();
    let maxUsedMib = 0;
    for (let i = 0; i < 3; i++) {
      const deadlineMs = failure === 'deadline' ? 300 : 5_000;
      await expect(raw.nfs.null({ deadlineMs })).rejects.toMatchObject({ name: 'RpcError', failure });
      maxUsedMib = Math.max(maxUsedMib, usedMemoryMib() - before);
    }
    // The client accepts a record of 2 MiB, and the test's own server has some data in flight.
    expect(maxUsedMib).toBeLessThan(12);
    isWellBehaved = true;
    await raw.nfs.null({ deadlineMs: 5_000 });
  });
});

describe("data for the caller's own buffer", () => {
  const size = 100_000;
  const data = Buffer.alloc(size, 7);

  test('that extend beyond their record cause an error, and later bytes are not mistaken for data', async () => {
    const raw = await startRawServer(
      answerWith(({ xid, bytes }, socket) => {
        // Procedure 6 is READ.
        if (bytes.readUInt32BE(24) !== 6) return void socket.write(reply(xid));
        const short = asRecord(readReply(xid, data).subarray(0, 50_000));
        socket.write(short.subarray(0, 20_000));
        setTimeout(() => socket.write(short.subarray(20_000)), 20);
      }),
    );
    const destination = Buffer.alloc(size);
    await expect(raw.nfs.read(handle, 0, destination, { deadlineMs: 2_000 })).rejects.toMatchObject({
      name: 'XdrError',
    });
    await raw.nfs.null();
    expect(raw.connections).toBe(1);
  });

  test('may be followed by other bytes of the same record', async () => {
    const tail = Buffer.alloc(1_500_000, 9);
    const raw = await startRawServer(
      answerWith(({ xid }, socket) => {
        const recordBytes = asRecord(Buffer.concat([readReply(xid, data), tail]));
        socket.write(recordBytes.subarray(0, 60_000));
        setTimeout(() => socket.write(recordBytes.subarray(60_000)), 20);
      }),
    );
    const destination = Buffer.alloc(size);
    expect(await raw.nfs.read(handle, 0, destination, { deadlineMs: 3_000 })).toMatchObject({ count: size });
    expect(destination.equals(data)).toBe(true);
    expect(await raw.nfs.read(handle, 0, destination, { deadlineMs: 3_000 })).toMatchObject({ count: size });
  });

  test('are handled the same way with data events, which TLS uses', () => {
    const target = Buffer.alloc(size);
    const events: string[] = [];
    const receiver = createReceiver({
      maxRecord: 2 ** 21,
      onRecord: (_buffer, _view, from, end) => void events.push(`record ${end - from}`),
      onHead: (_buffer, _view, from) => ({ from, target, done: () => void events.push('data') }),
    });
    const stream = Buffer.concat([asRecord(Buffer.alloc(2 ** 21 - 4, 7)), asRecord(Buffer.alloc(8))]);
    // Without room in its buffer, the receiver would loop here for ever.
    for (let at = 0; at < stream.length; at += 16_384) {
      expect(receiver.buffer().length).toBeGreaterThan(0);
      receiver.push(stream.subarray(at, at + 16_384));
    }
    expect(events).toEqual(['data', 'record 8']);
  });
});
