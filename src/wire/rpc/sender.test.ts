import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { createSender } from './sender.ts';

async function connectPair(): Promise<{ readonly near: Socket; readonly far: Socket }> {
  const server = createServer({ pauseOnConnect: true }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const near = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [[far]] = (await Promise.all([once(server, 'connection'), once(near, 'connect')])) as [[Socket], unknown];
  onTestFinished(() => {
    near.destroy();
    far.destroy();
    server.close();
  });
  return { near, far };
}

/** Reads `length` bytes. Calls `onChunk` after each chunk, when the kernel has room again. */
async function read(socket: Socket, length: number, onChunk: () => void = () => undefined): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let receivedBytes = 0;
  const { promise, resolve } = Promise.withResolvers<void>();
  socket.on('data', (chunk: Buffer) => {
    chunks.push(chunk);
    receivedBytes += chunk.length;
    onChunk();
    if (receivedBytes >= length) resolve();
  });
  socket.resume();
  await promise;
  return Buffer.concat(chunks);
}

/** One record with its mark: a number, the length of the data, and the data. */
function encodedRecord(number: number, data: Uint8Array): Buffer {
  const padding = Buffer.alloc((4 - (data.length & 3)) & 3);
  const head = Buffer.alloc(12);
  head.writeUInt32BE((0x8000_0000 | (8 + data.length + padding.length)) >>> 0, 0);
  head.writeUInt32BE(number, 4);
  head.writeUInt32BE(data.length, 8);
  return Buffer.concat([head, data, padding]);
}

describe.each([true, false])('a sender (writes straight to the descriptor: %s)', (isPlainTcp) => {
  test('sends records completely and in order although the peer does not read for a long time', async () => {
    const { near, far } = await connectPair();
    const errors: unknown[] = [];
    const sentData: Uint8Array[] = [];
    const onSent = (data: Uint8Array): void => void sentData.push(data);
    const sender = createSender(near, { onError: (cause) => errors.push(cause), onSent, isPlainTcp });
    // Far more than the kernel buffers, in sizes with and without a copy, and with and without padding.
    const all = Array.from({ length: 200 }, (_, i) => Buffer.alloc((i * 997) % 130_003, i));
    const send = (data: Buffer, i: number): void => {
      sender.addRecord((writer) => {
        writer.u32(i).u32(data.length);
        return data;
      }, undefined);
      if (i % 3 === 0) sender.flush();
      else if (i % 3 === 1) sender.flushSoon();
    };
    all.slice(0, 190).forEach(send);
    sender.flush();
    expect(sender.queued).toBeGreaterThan(0);
    const expectedBytes = Buffer.concat(all.map((data, i) => encodedRecord(i, data)));
    let next = 190;
    const onChunk = (): void => {
      const data = all[next];
      if (data !== undefined) send(data, next++);
    };
    expect((await read(far, expectedBytes.length, onChunk)).equals(expectedBytes)).toBe(true);
    await expect.poll(() => sender.queued).toBe(0);
    // Compare indexes: comparing the contents would take seconds.
    expect(sentData.map((data) => all.indexOf(data as (typeof all)[number]))).toEqual(
      all.flatMap((data, i) => (data.length > 4096 ? [i] : [])),
    );
    expect(errors).toEqual([]);
  });

  test('sends records at the flush, not before', async () => {
    const { near, far } = await connectPair();
    const sender = createSender(near, { onError: () => undefined, isPlainTcp });
    const addNumber = (number: number): void =>
      sender.addRecord((writer) => {
        writer.u32(number).u32(0);
        return undefined;
      }, undefined);
    addNumber(1);
    expect(sender.queued).toBe(12);
    expect(near.bytesWritten).toBe(0);
    addNumber(2);
    sender.flush();
    const expectedBytes = Buffer.concat([encodedRecord(1, Buffer.alloc(0)), encodedRecord(2, Buffer.alloc(0))]);
    expect(await read(far, expectedBytes.length)).toEqual(expectedBytes);
  });

  test('drops all records if the connection is closed', async () => {
    const { near } = await connectPair();
    const sender = createSender(near, { onError: () => undefined, isPlainTcp });
    near.destroy();
    sender.addRecord((writer) => {
      writer.u32(1);
      return Buffer.alloc(100_000);
    }, undefined);
    sender.flush();
    expect(sender.queued).toBe(0);
  });
});
