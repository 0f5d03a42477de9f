import { execFileSync } from 'node:child_process';
import { closeSync, openSync, rmSync, truncateSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { Labels } from '#core/model.ts';

const block = 4096;

/** The maximum number of labels, so that a record takes several blocks. */
export const manyLabels: Labels = Object.fromEntries(
  Array.from({ length: 64 }, (_, i) => [`label-${i}-${'k'.repeat(100)}`, 'v'.repeat(256)]),
);

const filler = (disk: string): string => join(disk, 'filler');
const sync = (disk: string): void => void execFileSync('sync', ['--file-system', disk]);

/** Fills the disk, then frees exactly one block, so that write(2) takes the first block of a longer record and no more. */
export function fillUpToOneBlock(disk: string): void {
  const fd = openSync(filler(disk), 'w');
  let size = 0;
  try {
    for (;;) size += writeSync(fd, Buffer.alloc(block));
  } catch (cause) {
    expect(cause).toMatchObject({ code: 'ENOSPC' });
  } finally {
    closeSync(fd);
  }
  sync(disk);
  truncateSync(filler(disk), Math.floor(size / block) * block - block);
  sync(disk);
  expect(bytesOfOneWrite(disk, Buffer.alloc(8 * block))).toBe(block);
}

/** How many of the bytes a single write(2) writes. Leaves the disk unchanged. */
function bytesOfOneWrite(disk: string, bytes: Buffer): number {
  const path = join(disk, 'probe');
  const fd = openSync(path, 'wx');
  try {
    return writeSync(fd, bytes);
  } finally {
    closeSync(fd);
    rmSync(path);
    sync(disk);
  }
}

export const removeFiller = (disk: string): void => rmSync(filler(disk));
