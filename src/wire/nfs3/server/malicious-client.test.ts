import { once } from 'node:events';
import * as fs from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { usedMemoryMib } from '#testing/memory.ts';
import { type Mounted, type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import { uint32s } from '#testing/rpc-records.ts';
import type { Procedure } from '../../rpc/procedure.ts';
import { nfsProgram, stability } from '../structures.ts';

const mib = 1024 * 1024;
/** The server answers a well-behaved client within this time, whatever other clients do. */
const shortDeadline = { deadlineMs: 5_000 };

async function connectAttacker({ server }: OwnServer): Promise<Socket> {
  const socket = connect(server.port, server.host);
  socket.on('error', () => undefined);
  onTestFinished(() => void socket.destroy());
  await once(socket, 'connect');
  return socket;
}

const connectAttackers = (own: OwnServer, count: number): Promise<Socket[]> =>
  Promise.all(Array.from({ length: count }, () => connectAttacker(own)));

const hasClosed = async (socket: Socket): Promise<boolean> => {
  socket.resume();
  if (!socket.closed) await Promise.race([once(socket, 'close'), once(socket, 'end')]);
  return true;
};

/** Creates, writes, reads and removes a file, and expects timely replies. */
async function expectServed({ nfs, root }: Mounted, name: string): Promise<void> {
  const { handle } = await nfs.create(root, name, { mode: 'guarded', set: {} }, shortDeadline);
  await nfs.write(handle, 0, Buffer.from(name), stability.unstable, shortDeadline);
  const destination = Buffer.alloc(name.length);
  await nfs.read(handle, 0, destination, shortDeadline);
  expect(destination.toString()).toBe(name);
  await nfs.remove(root, name, shortDeadline);
}

/** Sends chunks as fast as the server reads, until `bytes` bytes are sent or the server closes the connection. */
async function sendWithoutEnd(socket: Socket, chunk: Buffer, bytes: number): Promise<void> {
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  let wake = end;
  socket.on('close', () => end()).on('drain', () => wake());
  for (let sent = 0; sent < bytes && !socket.destroyed; sent += chunk.length) {
    if (socket.write(chunk)) continue;
    const { promise: drained, resolve } = Promise.withResolvers<void>();
    wake = resolve;
    await Promise.race([drained, ended]);
  }
}

describe.skipIf(lacks('linux'))('a malicious client', () => {
  test.each([
    ['a record of 2 GiB', uint32s(0xffff_ffff)],
    ['a record that is one byte too long', uint32s(0x8000_0000 | (mib + 64 * 1024 + 1))],
    ['a reply instead of a call', uint32s(0x8000_0018, 1, 1, 0, 0, 0, 0)],
    ['a record too short for a call', uint32s(0x8000_0004, 1)],
  ])('that sends %s loses its connection', async (_, bytes) => {
    const own = await startOwnServer({ durable: false });
    const socket = await connectAttacker(own);
    socket.write(bytes);
    expect(await hasClosed(socket)).toBe(true);
    await expectServed(await own.mount(), 'file');
  });

  test('that sends endless fragments, full or empty, takes no memory, and the server serves other clients meanwhile', async () => {
    const own = await startOwnServer({ durable: false });
    const mounted = await own.mount();
    const before = usedMemoryMib();
    const [full, empty] = [await connectAttacker(own), await connectAttacker(own)];
    const fragments = Buffer.concat([uint32s(65_536), Buffer.alloc(65_536)]);
    const sending = [sendWithoutEnd(full, fragments, 64 * mib), sendWithoutEnd(empty, Buffer.alloc(65_536), 16 * mib)];
    let maxUsedMib = 0;
    for (let i = 0; i < 20; i++) {
      await expectServed(mounted, `file-${i}`);
      maxUsedMib = Math.max(maxUsedMib, usedMemoryMib() - before);
    }
    await Promise.all(sending);
    expect(full.destroyed).toBe(true);
    expect(maxUsedMib).toBeLessThan(16);
  });

  test('that opens a thousand idle connections does not lock out other clients', async () => {
    const own = await startOwnServer({ durable: false });
    const earlierClient = await own.mount();
    const before = usedMemoryMib();
    const idle = await connectAttackers(own, 1000);
    // A client that was connected before, and a new one.
    await expectServed(earlierClient, 'early');
    await expectServed(await own.mount(), 'late');
    await expect
      .poll(() => idle.filter(({ destroyed, readableEnded }) => destroyed || readableEnded).length)
      .toBeGreaterThan(700);
    // 256 connections, each with buffers for receiving and sending. The memory of evicted connections is freed a moment later.
    await expect.poll(() => usedMemoryMib() - before).toBeLessThan(256 * 0.6);
  });

  test('that sends only parts of calls takes only the memory of the sent bytes, and does not lock out other clients', async () => {
    const connectionLimit = 64;
    const own = await startOwnServer({ maxConnections: connectionLimit, durable: false });
    const before = usedMemoryMib();
    // All but the last byte of a WRITE, on more connections than the limit.
    const part = Buffer.concat([uint32s(0x8000_0000 | mib), Buffer.alloc(mib - 1)]);
    await Promise.all(
      (await connectAttackers(own, connectionLimit * 2)).map((socket) => sendWithoutEnd(socket, part, part.length)),
    );
    await expectServed(await own.mount(), 'file');
    // Each connection holds one call, and buffers for receiving and sending.
    expect(usedMemoryMib() - before).toBeLessThan(connectionLimit * 1.7);
  });

  test('that asks for huge counts gets no more than the maximum of one reply', async () => {
    const own = await startOwnServer({ durable: false });
    const { nfs, rpc, root } = await own.mount();
    fs.writeFileSync(join(own.directory, 'large'), Buffer.alloc(3 * mib, 7));
    fs.mkdirSync(join(own.directory, 'many'));
    for (let i = 0; i < 800; i++)
      fs.closeSync(fs.openSync(join(own.directory, 'many', `${i}`.padStart(250, 'x')), 'w'));
    const { handle: large } = await nfs.lookup(root, 'large');
    const { handle: many } = await nfs.lookup(root, 'many');
    const hugeCount = 0xffff_ffff;
    /** Returns the length of the reply. */
    const replyLengthCall = (
      number: number,
      name: string,
      handle: Uint8Array,
      rest: Buffer,
    ): Procedure<undefined, number> => ({
      program: nfsProgram,
      version: 3,
      number,
      name,
      encode: (writer) => {
        writer.opaque(handle).fixedOpaque(rest);
        return undefined;
      },
      decode: (reader) => (reader.u32() === 0 ? reader.remaining : 0),
    });
    const read = await rpc.call(replyLengthCall(6, 'READ', large, uint32s(0, 0, hugeCount)), undefined, shortDeadline);
    expect(read).toBeGreaterThan(mib);
    expect(read).toBeLessThan(mib + 200);
    const readdir = await rpc.call(
      replyLengthCall(16, 'READDIR', many, uint32s(0, 0, 0, 0, hugeCount)),
      undefined,
      shortDeadline,
    );
    const plus = await rpc.call(
      replyLengthCall(17, 'READDIRPLUS', many, uint32s(0, 0, 0, 0, hugeCount, hugeCount)),
      undefined,
      shortDeadline,
    );
    for (const length of [readdir, plus]) {
      expect(length).toBeGreaterThan(100_000);
      expect(length).toBeLessThanOrEqual(128 * 1024);
    }
  });

  test('that sends forged, truncated or extended handles is refused every time', async () => {
    const own = await startOwnServer({ durable: false });
    const { nfs, root } = await own.mount();
    const { handle } = await nfs.create(root, 'file', { mode: 'guarded', set: {} });
    const good = Buffer.from(handle);
    const forged: Buffer[] = Array.from({ length: good.length }, (_, i) => good.subarray(0, i));
    for (let bit = 0; bit < good.length * 8; bit++) {
      const one = Buffer.from(good);
      one[bit >> 3] = (one[bit >> 3] ?? 0) ^ (1 << (bit & 7));
      forged.push(one);
    }
    for (let i = 1; good.length + i <= 64; i++) forged.push(Buffer.concat([good, Buffer.alloc(i)]));
    const answers = await Promise.all(
      forged.map((one) =>
        nfs.getattr(one).then(
          () => 'taken',
          (cause: { statusName?: string }) => cause.statusName,
        ),
      ),
    );
    expect(new Set(answers)).toEqual(new Set(['BADHANDLE']));
    expect((await nfs.getattr(handle)).size).toBe(0);
  });

  test('cannot keep the server from serving well-behaved clients, even with all attacks at the same time', async () => {
    const connectionLimit = 64;
    const own = await startOwnServer({ maxConnections: connectionLimit, durable: false });
    const mounted = await own.mount();
    const before = usedMemoryMib();
    let isOver = false;
    const attacks: ((socket: Socket) => Promise<unknown>)[] = [
      (socket) => sendWithoutEnd(socket, Buffer.alloc(65_536, 0xff), mib),
      (socket) => sendWithoutEnd(socket, Buffer.alloc(4096), 65_536),
      (socket) => sendWithoutEnd(socket, uint32s(0x8000_0028, 1, 0, 2, nfsProgram, 3, 1, 0, 0, 0, 0), 8192),
      (socket) => sendWithoutEnd(socket, uint32s(0x8010_0000, 1, 2, 3), 16),
      async (socket) => socket.resetAndDestroy(),
    ];
    const attackers = attacks.map(async (attack) => {
      while (!isOver) {
        await attack(await connectAttacker(own));
        // Give the server time, since the attackers run in the same process.
        await delay(5);
      }
    });
    let maxUsedMib = 0;
    for (let i = 0; i < 30; i++) {
      await expectServed(i % 10 === 0 ? await own.mount() : mounted, `file-${i}`);
      if (i % 10 === 9) maxUsedMib = Math.max(maxUsedMib, usedMemoryMib() - before);
    }
    isOver = true;
    await Promise.all(attackers);
    expect(maxUsedMib).toBeLessThan(connectionLimit * 1.7);
    expect(fs.readdirSync(own.directory)).toEqual([]);
  });
});
