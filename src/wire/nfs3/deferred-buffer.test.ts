import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import type { DeferredBuffer } from './procedures.ts';

const mib = 1024 * 1024;

async function serve(content: Buffer) {
  const own = await startOwnServer();
  writeFileSync(join(own.directory, 'f'), content);
  const { nfs, root } = await own.mount();
  return { nfs, handle: (await nfs.lookup(root, 'f')).handle };
}

function lateBuffer(length: number): DeferredBuffer & { readonly asked: number[] } {
  const asked: number[] = [];
  return {
    length,
    asked,
    take: (wanted) => {
      asked.push(wanted);
      return Buffer.alloc(wanted);
    },
  };
}

describe.skipIf(needs('linux'))('a buffer that is taken when data arrive', () => {
  test.each([10, 100_000, mib])('is taken once, for the bytes that arrived: %d', async (length) => {
    const content = randomBytes(length);
    const { nfs, handle } = await serve(content);
    const into = lateBuffer(mib);
    const { data, count, isEnd } = await nfs.read(handle, 0, into);
    expect(data.equals(content)).toBe(true);
    expect({ count, isEnd }).toEqual({ count: length, isEnd: true });
    expect(into.asked).toEqual([length]);
  });

  test('is never taken for more than one READ returns', async () => {
    const { nfs, handle } = await serve(Buffer.alloc(3 * mib));
    const into = lateBuffer(3 * mib);
    expect((await nfs.read(handle, 0, into)).count).toBe(mib);
    expect(into.asked).toEqual([mib]);
  });

  test('is reused by many reads in flight', async () => {
    const content = randomBytes(16 * mib);
    const { nfs, handle } = await serve(content);
    const free: Buffer[] = [];
    let made = 0;
    const into: DeferredBuffer = {
      length: mib,
      take: () => {
        const known = free.pop();
        if (known !== undefined) return known;
        made++;
        return Buffer.alloc(mib);
      },
    };
    const pieces = Array.from({ length: 16 }, async (_, i) => {
      const { data } = await nfs.read(handle, i * mib, into);
      expect(data.equals(content.subarray(i * mib, (i + 1) * mib))).toBe(true);
      free.push(data);
    });
    await Promise.all(pieces);
    expect(made).toBeLessThan(4);
  });
});
