import { expect, test } from 'vitest';
import { readToEnd } from './files.ts';

type File = Parameters<typeof readToEnd>[0];

/** A file of which read(2) returns at most `maxBytes` at a time. */
function fileGiving(text: string, maxBytes: number): File {
  let offset = 0;
  const read = async (buffer: Buffer, from: number, length: number) => {
    const part = Buffer.from(text).subarray(offset, offset + Math.min(maxBytes, length));
    buffer.set(part, from);
    offset += part.length;
    return { bytesRead: part.length, buffer };
  };
  return { read } as unknown as File;
}

const long = 'x'.repeat(10_000);

test.each([1, 3000, 4096, 65_536])(
  'reads a whole file although read(2) returns only %i bytes at a time',
  async (maxBytes) => {
    expect((await readToEnd(fileGiving(long, maxBytes), long.length, 65_536)).toString()).toBe(long);
  },
);

test('returns the rest of a file that has become shorter', async () => {
  expect((await readToEnd(fileGiving('short', 3), 10_000, 65_536)).toString()).toBe('short');
});

test.each([3000, 65_536])(
  'refuses a file that is longer than the limit, although read(2) returns only %i bytes at a time',
  async (maxBytes) => {
    await expect(readToEnd(fileGiving(long, maxBytes), long.length, 9_999)).rejects.toThrow(
      'it is larger than 9999 bytes',
    );
  },
);
