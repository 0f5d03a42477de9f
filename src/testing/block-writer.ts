/**
 * Writes blocks whose content is derived from their number, and calls fsync regularly. After a failed fsync it writes the blocks
 * again. Prints a line for each `fsync`: the number of durable blocks, or the error. Arguments: a file, the first block, the count.
 */

import { closeSync, fsyncSync, openSync, writeSync } from 'node:fs';
import process from 'node:process';
import { pathToFileURL } from 'node:url';

export const blockSize = 64 * 1024;
const perSync = 16;

export function block(number: number): Buffer {
  return Buffer.alloc(blockSize, `block ${number} `);
}

function main([file = '', first = '0', count = '0']: readonly string[]): void {
  const fd = openSync(file, 'r+');
  const [from, total] = [Number(first), Number(count)];
  for (let safe = 0; safe < total; ) {
    const next = Math.min(total, safe + perSync);
    try {
      for (let i = from + safe; i < from + next; i++) writeSync(fd, block(i), 0, blockSize, i * blockSize);
      fsyncSync(fd);
      safe = next;
      process.stdout.write(`${safe}\n`);
    } catch (cause) {
      const { code } = cause as { readonly code?: string };
      if (code !== 'EIO') throw cause;
      process.stdout.write('EIO\n');
    }
  }
  closeSync(fd);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) main(process.argv.slice(2));
