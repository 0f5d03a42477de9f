import { statfs } from 'node:fs/promises';
import type { Room } from '#core/model.ts';

/** As `df` shows it: blocks reserved for root are not free. */
export async function roomAt(path: string): Promise<Room> {
  const { bsize, blocks, bavail } = await statfs(path, { bigint: true });
  return { totalBytes: blocks * bsize, freeBytes: bavail * bsize };
}
