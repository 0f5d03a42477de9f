import type { BigIntStats } from 'node:fs';
import { constants } from 'node:fs';
import { lstat, open } from 'node:fs/promises';
import { DeadlineExceeded } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import { stowageError } from '#core/errors.ts';
import type { ScanResult } from '../file-store/files.ts';
import { openRawDirectory } from './raw-entries.ts';
import { maxFileCallsPerLongCall } from './slots-by-device.ts';

interface Directory {
  readonly path: Buffer;
  readonly dev: bigint;
  readonly ino: bigint;
}

const blockSize = 512n;

/**
 * Limits the memory of a scan: files with several names, and directories still to scan. A volume's users decide how many of these there
 * are. Beyond the limits the scan skips the rest and reports that it is incomplete.
 */
export interface ScanLimits {
  readonly maxLinks: number;
  /** Total length of the paths of the directories still to scan. */
  readonly maxPathBytes: number;
}

const defaultLimits: ScanLimits = { maxLinks: 250_000, maxPathBytes: 32 * 1024 * 1024 };
/** Memory for one path in addition to its bytes. */
const pathOverheadBytes = 256;

/**
 * The space that a tree occupies, as du counts it: allocated blocks, a file with several names once, other file systems mounted inside not at
 * all. Users may change the tree during the scan. So the scan opens each directory without following links, compares it with the one that it
 * listed, and looks up entries through the open descriptor: a directory swapped for a link never leads it out of the volume.
 */
export async function scanTree(top: string, signal: AbortSignal, limits = defaultLimits): Promise<ScanResult> {
  let bytes = 0n;
  let files = 0n;
  let complete = true;
  let queuedBytes = 0;
  const countedInodes = new Set<string>();
  const topStats = await lstat(top, { bigint: true });
  const pending: Directory[] = [];
  enqueue({ path: Buffer.from(top), dev: topStats.dev, ino: topStats.ino });
  bytes += topStats.blocks * blockSize;

  function enqueue(directory: Directory): void {
    const cost = directory.path.length + pathOverheadBytes;
    if (queuedBytes + cost > limits.maxPathBytes) complete = false;
    else {
      queuedBytes += cost;
      pending.push(directory);
    }
  }

  function isFirstName(ino: bigint): boolean {
    const key = `${ino}`;
    if (countedInodes.has(key)) return false;
    if (countedInodes.size >= limits.maxLinks) complete = false;
    else countedInodes.add(key);
    return countedInodes.has(key);
  }

  function count(path: Buffer, entry: BigIntStats): void {
    if (entry.dev !== topStats.dev) return;
    if (entry.isDirectory()) enqueue({ path, dev: entry.dev, ino: entry.ino });
    else if (entry.nlink > 1n && !isFirstName(entry.ino)) return;
    bytes += entry.blocks * blockSize;
    files += 1n;
  }

  for (let directory = pending.pop(); directory !== undefined; directory = pending.pop()) {
    queuedBytes -= directory.path.length + pathOverheadBytes;
    try {
      await scanOne(directory, signal, count);
    } catch (cause) {
      if (signal.aborted) {
        if (signal.reason instanceof DeadlineExceeded) return { bytes, files, complete: false };
        throw stowageError(signal.reason);
      }
      // Removed or replaced since it was listed, so no longer part of the volume. After any other error a part is missing.
      if (!isErrno(cause, 'ENOENT', 'ENOTDIR', 'ELOOP')) complete = false;
    }
  }
  return { bytes, files, complete };
}

async function scanOne(
  directory: Directory,
  signal: AbortSignal,
  count: (path: Buffer, entry: BigIntStats) => void,
): Promise<void> {
  signal.throwIfAborted();
  const handle = await open(directory.path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    const opened = await handle.stat({ bigint: true });
    if (opened.dev !== directory.dev || opened.ino !== directory.ino) return;
    // Other systems have no /proc; use the path there.
    const descriptorPath = process.platform === 'linux' ? Buffer.from(`/proc/self/fd/${handle.fd}`) : directory.path;
    const list = await openRawDirectory(descriptorPath);
    await eachBounded(list, maxFileCallsPerLongCall, async ({ name }) => {
      signal.throwIfAborted();
      try {
        count(child(directory.path, name), await lstat(child(descriptorPath, name), { bigint: true }));
      } catch (cause) {
        if (!isErrno(cause, 'ENOENT')) throw cause;
      }
    });
  } finally {
    await handle.close();
  }
}

const child = (directory: Buffer, name: Buffer): Buffer => Buffer.concat([directory, Buffer.from('/'), name]);
