import { coalesce } from '#base/coalesce.ts';
import { isFull } from './files.ts';
import type { Reserve } from './store-root.ts';

export const pieceCount = 8;
export const pieceBytes = 128 * 1024;
/** Below this many times the reserve, the free space is left to the volumes. */
export const minFreeFactor = 4;

/** `removePiece` removes one piece of the reserve. It returns false if there is none. */
export function createRetryWithReserve(removePiece: () => Promise<boolean>): Reserve['retryWithReserve'] {
  let removedCount = 0;
  // Operations that find the store full at the same time share one piece.
  const releasePiece = coalesce(async () => {
    if (await removePiece()) removedCount++;
  });
  return async (work) => {
    for (;;) {
      const before = removedCount;
      try {
        return await work();
      } catch (cause) {
        if (!isFull(cause)) throw cause;
        await releasePiece();
        // Another operation may have removed a piece in the meantime; that is enough for a retry.
        if (removedCount === before) throw cause;
      }
    }
  };
}
