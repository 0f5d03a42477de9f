import { randomBytes } from 'node:crypto';
import { mkdir, statfs, truncate, writeFile } from 'node:fs/promises';
import { coalesced } from '#base/coalesced.ts';
import { isFull } from '../shelf/files.ts';
import type { Place, Reserve } from '../shelf/place.ts';
import { lstatIfThere, unlinkIfThere } from './files.ts';

const pieces = 8;
const pieceBytes = 128 * 1024;
/** Below this many times the reserve the room is left to the volumes. */
const plenty = 4;

/** In `.stowage/reserve`. */
export function createReserve(place: Pick<Place, 'own' | 'root'>): Reserve {
  const names = Array.from({ length: pieces }, (_, i) => place.own('reserve', `${i}`));
  let givenUp = 0;

  // Those who find the store full at the same time share one piece.
  const giveUp = coalesced(async () => {
    for (const path of names) {
      // XFS frees the blocks of an unlinked file some time later, those of a shortened one at once.
      await truncate(path, 0).catch(() => undefined);
      if (await unlinkIfThere(path)) {
        givenUp++;
        return;
      }
    }
  });

  async function make(): Promise<void> {
    const missing: string[] = [];
    for (const path of names) if ((await lstatIfThere(path))?.size !== pieceBytes) missing.push(path);
    if (missing.length === 0) return;
    const { bsize, bavail } = await statfs(place.root, { bigint: true });
    if (bavail * bsize < BigInt(missing.length * pieceBytes * plenty)) return;
    await mkdir(place.own('reserve'), { mode: 0o700, recursive: true });
    // Random, as zeros would take no room where the file system compresses. Not synced: it is no loss.
    for (const path of missing) {
      await unlinkIfThere(path);
      await writeFile(path, randomBytes(pieceBytes), { mode: 0o600, flag: 'wx' });
    }
  }

  return {
    backing: async (work) => {
      for (;;) {
        const before = givenUp;
        try {
          return await work();
        } catch (cause) {
          if (!isFull(cause)) throw cause;
          await giveUp();
          // Somebody else may have given one up meanwhile: that is as good.
          if (givenUp === before) throw cause;
        }
      }
    },
    refill: async () => {
      await make().catch((cause: unknown) => {
        if (!isFull(cause)) throw cause;
      });
    },
  };
}
