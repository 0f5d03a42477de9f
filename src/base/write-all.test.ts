import { execFileSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { writeAll, writeAllSync } from './write-all.ts';

type File = Parameters<typeof writeAll>[0];

/** A file whose write(2) writes at most `most` bytes. */
function fileTaking(maxBytes: number, written: number[]): File {
  const write = async (data: Uint8Array, from: number, length: number) => {
    const part = data.subarray(from, from + Math.min(maxBytes, length));
    written.push(...part);
    return { bytesWritten: part.length, buffer: data };
  };
  return { write } as unknown as File;
}

test.each([1, 3, 4096])('writes everything although write(2) writes only %i bytes at a time', async (maxBytes) => {
  const written: number[] = [];
  await writeAll(fileTaking(maxBytes, written), 'größer als drei');
  expect(Buffer.from(written).toString()).toBe('größer als drei');
});

test('fails if write(2) returns 0', async () => {
  await expect(writeAll(fileTaking(0, []), 'x')).rejects.toMatchObject({ code: 'EIO' });
});

test('writes an empty text', async () => {
  await writeAll(fileTaking(0, []), '');
});

describe.skipIf(lacks('root', 'mount'))('on a disk with one free block', () => {
  let disk: string;
  beforeEach(() => {
    disk = mkdtempSync(join(tmpdir(), 'stowage-block-'));
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8k', 'stowage-test', disk]);
    writeFileSync(join(disk, 'filler'), Buffer.alloc(4096));
  });
  afterEach(() => {
    execFileSync('umount', [disk]);
    rmSync(disk, { recursive: true });
  });

  test('writeAll fails with ENOSPC instead of truncating the text', async () => {
    await using file = await open(join(disk, 'a'), 'wx');
    await expect(writeAll(file, 'x'.repeat(4097))).rejects.toMatchObject({ code: 'ENOSPC' });
  });

  test('writeAllSync fails with ENOSPC instead of truncating the text', () => {
    const fd = openSync(join(disk, 'a'), 'wx');
    try {
      expect(() => writeAllSync(fd, 'x'.repeat(4097))).toThrow('ENOSPC');
    } finally {
      closeSync(fd);
    }
  });

  test("both write text that fits, at the file's current position", async () => {
    const path = join(disk, 'a');
    await using file = await open(path, 'wx');
    await writeAll(file, 'one ');
    await writeAll(file, 'two ');
    writeAllSync(file.fd, Buffer.from('three'));
    expect(readFileSync(path, 'utf8')).toBe('one two three');
  });

  test("Node's writeFile fails too, which the rest of the tree relies on", async () => {
    const text = 'x'.repeat(4097);
    expect(() => writeFileSync(join(disk, 'a'), text)).toThrow('ENOSPC');
    rmSync(join(disk, 'a'));
    await using file = await open(join(disk, 'b'), 'wx');
    await expect(file.writeFile(text)).rejects.toMatchObject({ code: 'ENOSPC' });
  });
});
