import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import type { DeferredBuffer } from './procedures.ts';

const mib = 1024 * 1024;

async function serveFile(content: Buffer) {
  const own = await startOwnServer();
  writeFileSync(join(own.directory, 'f'), content);
  const { nfs, root } = await own.mount();
  return { nfs, handle: (await nfs.lookup(root, 'f')).handle };
}

function recordingBuffer(length: number): DeferredBuffer & { readonly requestedLengths: number[] } {
  const requestedLengths: number[] = [];
  return {
    length,
    requestedLengths,
    take: (wanted) => {
      requestedLengths.push(wanted);
      return Buffer.alloc(wanted);
    },
  };
}

describe.skipIf(lacks('linux'))('a deferred buffer', () => {
  test.each([10, 100_000, mib])('is taken once, for the bytes that arrived: %d', async (length) => {
    const content = randomBytes(length);
    const { nfs, handle } = await serveFile(content);
    const destination = recordingBuffer(mib);
    const { data, count, isEnd } = await nfs.read(handle, 0, destination);
    expect(data.equals(content)).toBe(true);
    expect({ count, isEnd }).toEqual({ count: length, isEnd: true });
    expect(destination.requestedLengths).toEqual([length]);
  });

  test('is never taken for more than one READ returns', async () => {
    const { nfs, handle } = await serveFile(Buffer.alloc(3 * mib));
    const destination = recordingBuffer(3 * mib);
    expect((await nfs.read(handle, 0, destination)).count).toBe(mib);
    expect(destination.requestedLengths).toEqual([mib]);
  });

  test('is reused by many reads in flight', async () => {
    const content = randomBytes(16 * mib);
    const { nfs, handle } = await serveFile(content);
    const free: Buffer[] = [];
    let allocated = 0;
    const destination: DeferredBuffer = {
      length: mib,
      take: () => {
        const freeBuffer = free.pop();
        if (freeBuffer !== undefined) return freeBuffer;
        allocated++;
        return Buffer.alloc(mib);
      },
    };
    const pieces = Array.from({ length: 16 }, async (_, i) => {
      const { data } = await nfs.read(handle, i * mib, destination);
      expect(data.equals(content.subarray(i * mib, (i + 1) * mib))).toBe(true);
      free.push(data);
    });
    await Promise.all(pieces);
    expect(allocated).toBeLessThan(4);
  });
});
