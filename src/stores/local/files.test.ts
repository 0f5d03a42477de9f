import { expect, test } from 'vitest';
import { readToEnd } from './files.ts';

type File = Parameters<typeof readToEnd>[0];

/** A file of which read(2) gives at most `most` bytes at a time. */
function giving(text: string, most: number): File {
  let at = 0;
  const read = async (into: Buffer, from: number, length: number) => {
    const part = Buffer.from(text).subarray(at, at + Math.min(most, length));
    into.set(part, from);
    at += part.length;
    return { bytesRead: part.length, buffer: into };
  };
  return { read } as unknown as File;
}

const long = 'x'.repeat(10_000);

test.each([1, 3000, 4096, 65_536])('reads a whole file of which read(2) gives %i bytes at a time', async (most) => {
  expect((await readToEnd(giving(long, most), long.length, 65_536)).toString()).toBe(long);
});

test('returns the rest of a file that has become shorter', async () => {
  expect((await readToEnd(giving('short', 3), 10_000, 65_536)).toString()).toBe('short');
});

test.each([3000, 65_536])('refuses a file that is longer than the limit, given %i bytes at a time', async (most) => {
  await expect(readToEnd(giving(long, most), long.length, 9_999)).rejects.toThrow('it is larger than 9999 bytes');
});
