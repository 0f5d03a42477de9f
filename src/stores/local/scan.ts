import type { BigIntStats } from 'node:fs';
import { constants } from 'node:fs';
import { lstat, open } from 'node:fs/promises';
import { DeadlineExceeded } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import { stowageError } from '#core/errors.ts';
import type { ScanResult } from '../file-store/files.ts';
import { openRaw } from './raw-entries.ts';
import { fileCallsPerLongCall } from './slots-by-device.ts';

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
  readonly links: number;
  /** Total length of the paths of those directories, in bytes. */
  readonly paths: number;
}

const usual: ScanLimits = { links: 250_000, paths: 32 * 1024 * 1024 };
/** Memory for one path in addition to its bytes. */
const perPath = 256;

/**
 * The space that a tree occupies, as du counts it: allocated blocks, a file with several names once, other file systems mounted inside not at
 * all. Users may change the tree during the scan. So the scan opens each directory without following links, compares it with the one that it
 * listed, and looks up entries through the open descriptor: a directory swapped for a link never leads it out of the volume.
 */
export async function scanTree(top: string, signal: AbortSignal, limits = usual): Promise<ScanResult> {
  let bytes = 0n;
  let files = 0n;
  let complete = true;
  let kept = 0;
  const linked = new Set<string>();
  const first = await lstat(top, { bigint: true });
  const waiting: Directory[] = [];
  enqueue({ path: Buffer.from(top), dev: first.dev, ino: first.ino });
  bytes += first.blocks * blockSize;

  function enqueue(directory: Directory): void {
    const cost = directory.path.length + perPath;
    if (kept + cost > limits.paths) complete = false;
    else {
      kept += cost;
      waiting.push(directory);
    }
  }

  function isFirst(ino: bigint): boolean {
    const key = `${ino}`;
    if (linked.has(key)) return false;
    if (linked.size >= limits.links) complete = false;
    else linked.add(key);
    return linked.has(key);
  }

  function count(path: Buffer, entry: BigIntStats): void {
    if (entry.dev !== first.dev) return;
    if (entry.isDirectory()) enqueue({ path, dev: entry.dev, ino: entry.ino });
    else if (entry.nlink > 1n && !isFirst(entry.ino)) return;
    bytes += entry.blocks * blockSize;
    files += 1n;
  }

  for (let directory = waiting.pop(); directory !== undefined; directory = waiting.pop()) {
    kept -= directory.path.length + perPath;
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
    const via = process.platform === 'linux' ? Buffer.from(`/proc/self/fd/${handle.fd}`) : directory.path;
    const list = await openRaw(via);
    await eachBounded(list, fileCallsPerLongCall, async ({ name }) => {
      signal.throwIfAborted();
      try {
        count(child(directory.path, name), await lstat(child(via, name), { bigint: true }));
      } catch (cause) {
        if (!isErrno(cause, 'ENOENT')) throw cause;
      }
    });
  } finally {
    await handle.close();
  }
}

const child = (directory: Buffer, name: Buffer): Buffer => Buffer.concat([directory, Buffer.from('/'), name]);
