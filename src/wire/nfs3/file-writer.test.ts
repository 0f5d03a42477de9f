import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { NfsClient } from './client.ts';
import { createFileWriter, createWriteStream } from './file-writer.ts';
import { NfsError, nfsStatus } from './status.ts';

/** A server that keeps written data in memory until COMMIT, and loses uncommitted data when it restarts. */
function createVolatileServer(
  options: { readonly restartAfter?: readonly number[]; readonly short?: boolean; readonly stable?: boolean } = {},
) {
  const disk = new Map<number, number>();
  let memory = new Map<number, number>();
  let verifier = 1n;
  let writes = 0;
  const restart = (): void => {
    memory = new Map();
    verifier++;
  };
  const client = {
    write: async (_handle: Uint8Array, offset: number, data: Uint8Array) => {
      writes++;
      if (options.restartAfter?.includes(writes) === true) restart();
      const count = options.short === true ? Math.max(1, Math.floor(data.length / 2)) : data.length;
      const target = options.stable === true ? disk : memory;
      for (let i = 0; i < count; i++) target.set(offset + i, data[i] as number);
      // The verifier from when the server took the data: the server may restart while the reply is in flight.
      const verifierAtWrite = verifier;
      await new Promise((resolve) => setImmediate(resolve));
      return { count, committed: options.stable === true ? 2 : 0, verifier: verifierAtWrite, attributes: undefined };
    },
    commit: async () => {
      for (const [at, byte] of memory) disk.set(at, byte);
      return { verifier };
    },
  } as unknown as NfsClient;
  const contents = (length: number): Buffer => Buffer.from(Array.from({ length }, (_, i) => disk.get(i) ?? 0));
  return { client, contents, writes: () => writes, restart };
}

const handle = new Uint8Array(8);
const bytes = (length: number): Buffer => Buffer.from(Array.from({ length }, (_, i) => (i * 31 + 7) & 255));

describe('a file writer', () => {
  test('has its data on the disk after a flush, whatever sizes of WRITE the server accepts', async () => {
    for (const short of [false, true]) {
      const server = createVolatileServer({ short });
      const writer = createFileWriter(server.client, handle, { size: 10 });
      await writer.write(0, bytes(95));
      await writer.flush();
      expect(server.contents(95)).toEqual(bytes(95));
    }
  });

  test('loses no data when the server restarts several times, at any moment', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 4 }),
        fc.boolean(),
        fc.integer({ min: 1, max: 64 }),
        async (restartAfter, short, window) => {
          const server = createVolatileServer({ restartAfter, short });
          const writer = createFileWriter(server.client, handle, { size: 8, atOnce: 3, window });
          await writer.write(0, bytes(50));
          await writer.write(50, bytes(100).subarray(50));
          await writer.flush();
          expect(server.contents(100)).toEqual(bytes(100));
        },
      ),
    );
  });

  test('does not resend data that the server already has on stable storage', async () => {
    const server = createVolatileServer({ stable: true });
    const writer = createFileWriter(server.client, handle, { size: 10 });
    await writer.write(0, bytes(50));
    server.restart();
    await writer.flush();
    expect(server.writes()).toBe(5);
  });

  test('reports a write error at the next write or at the flush', async () => {
    const server = createVolatileServer();
    const noSpaceError = new NfsError('WRITE', nfsStatus.NOSPC, false);
    const client = { ...server.client, write: async () => Promise.reject(noSpaceError) };
    const writer = createFileWriter(client, handle, { size: 10 });
    await writer.write(0, bytes(10));
    await expect(writer.flush()).rejects.toBe(noSpaceError);
    await expect(writer.write(10, bytes(10))).rejects.toBe(noSpaceError);
  });

  test('works as a stream', async () => {
    const server = createVolatileServer({ restartAfter: [3] });
    await pipeline(
      Readable.from([bytes(100).subarray(0, 33), bytes(100).subarray(33)]),
      createWriteStream(server.client, handle, { size: 16 }),
    );
    expect(server.contents(100)).toEqual(bytes(100));
  });
});
