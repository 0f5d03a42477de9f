/**
 * A data path that kills itself right after it has answered a request with ENOSPC, before it has recorded the answer.
 * Only the first process dies: it leaves a marker file in the folder STOWAGE_TEST_FOLDER.
 */

import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import process from 'node:process';
import { outHeaderSize } from '#wire/fuse/abi.ts';
import { errno } from '#wire/fuse/errno.ts';

const died = join(process.env['STOWAGE_TEST_FOLDER'] ?? '', 'data-path-died');
const writeSync = fs.writeSync as (fd: number, bytes: Buffer, ...where: readonly unknown[]) => number;

const isRefusal = (bytes: unknown): boolean =>
  Buffer.isBuffer(bytes) && bytes.length === outHeaderSize && bytes.readInt32LE(4) === -errno.ENOSPC;

function writeAndDie(fd: number, bytes: Buffer, ...where: readonly unknown[]): number {
  const written = writeSync(fd, bytes, ...where);
  if (isRefusal(bytes) && !fs.existsSync(died)) {
    fs.closeSync(fs.openSync(died, 'w'));
    process.kill(process.pid, 'SIGKILL');
  }
  return written;
}

fs.writeSync = writeAndDie as typeof fs.writeSync;
syncBuiltinESMExports();
await import('#datapath/main.ts');
