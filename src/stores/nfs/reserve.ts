import { randomBytes } from 'node:crypto';
import { NfsError } from '#wire/nfs3/index.ts';
import { isDefiniteFailure } from '../file-store/files.ts';
import { createRetryWithReserve, minFreeFactor, pieceBytes, pieceCount } from '../file-store/reserve.ts';
import type { Reserve } from '../file-store/store-root.ts';
import type { NfsFiles } from './files.ts';
import { undefinedIfFolderAbsent } from './files.ts';

export interface ReserveParts {
  readonly files: NfsFiles;
  /** `.stowage/reserve`: all hosts share it. */
  readonly folder: string;
  scratchPath(): string;
  /** Free space on the server for this user, in bytes. */
  freeBytes(): Promise<bigint>;
}

/** Like the reserve of a local store, but on the server. Hosts create pieces by a rename, so any host may remove any piece. */
export function createNfsReserve({ files, folder, scratchPath, freeBytes }: ReserveParts): Reserve {
  const listPieces = async (): Promise<readonly string[]> => (await undefinedIfFolderAbsent(files.names(folder))) ?? [];

  async function removePiece(): Promise<boolean> {
    for (const name of await listPieces()) {
      const path = `${folder}/${name}`;
      const found = await files.attributes(path);
      // Some servers free the blocks of a removed file some time later, those of a truncated one at once.
      if (found !== undefined) await files.resetMark(path, found).catch(() => false);
      if (await files.unlink(path)) return true;
    }
    return false;
  }

  async function createMissing(): Promise<void> {
    const existing = new Set(await listPieces());
    const missing = Array.from({ length: pieceCount }, (_, i) => `${i}`).filter((name) => !existing.has(name));
    if (missing.length === 0 || (await freeBytes()) < BigInt(missing.length * pieceBytes * minFreeFactor)) return;
    await files.makeFolder(folder);
    for (const name of missing) {
      const fresh = scratchPath();
      // Random data, because zeros would take no space on a server that compresses.
      await files.writeNew(fresh, randomBytes((pieceBytes * 3) / 4).toString('base64'));
      await files.rename(fresh, `${folder}/${name}`);
    }
  }

  return {
    retryWithReserve: createRetryWithReserve(removePiece),
    refill: async () => {
      await createMissing().catch((cause: unknown) => {
        // The server is full, or does not report its free space. Keep the reserve as it is.
        if (!isDefiniteFailure(cause) && !(cause instanceof NfsError)) throw cause;
      });
    },
  };
}
