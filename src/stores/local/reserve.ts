import { randomBytes } from 'node:crypto';
import { mkdir, truncate, writeFile } from 'node:fs/promises';
import { isFull } from '../file-store/files.ts';
import { createRetryWithReserve, minFreeFactor, pieceBytes, pieceCount } from '../file-store/reserve.ts';
import type { Reserve, StoreRoot } from '../file-store/store-root.ts';
import { lstatIfThere, unlinkIfThere } from './files.ts';
import { roomAt } from './room.ts';

/** The pieces are files in `.stowage/reserve`. */
export function createReserve(storeRoot: Pick<StoreRoot, 'ownPath' | 'root'>): Reserve {
  const names = Array.from({ length: pieceCount }, (_, i) => storeRoot.ownPath('reserve', `${i}`));

  async function removePiece(): Promise<boolean> {
    for (const path of names) {
      // XFS frees the blocks of an unlinked file some time later, those of a truncated one at once.
      await truncate(path, 0).catch(() => undefined);
      if (await unlinkIfThere(path)) return true;
    }
    return false;
  }

  async function make(): Promise<void> {
    const missing: string[] = [];
    for (const path of names) if ((await lstatIfThere(path))?.size !== pieceBytes) missing.push(path);
    if (missing.length === 0) return;
    if ((await roomAt(storeRoot.root)).freeBytes < BigInt(missing.length * pieceBytes * minFreeFactor)) return;
    await mkdir(storeRoot.ownPath('reserve'), { mode: 0o700, recursive: true });
    // Random data, because zeros would take no space on a file system that compresses. Not synced: losing a piece does no harm.
    for (const path of missing) {
      await unlinkIfThere(path);
      await writeFile(path, randomBytes(pieceBytes), { mode: 0o600, flag: 'wx' });
    }
  }

  return {
    retryWithReserve: createRetryWithReserve(removePiece),
    refill: async () => {
      await make().catch((cause: unknown) => {
        if (!isFull(cause)) throw cause;
      });
    },
  };
}
