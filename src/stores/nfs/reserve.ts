import { randomBytes } from 'node:crypto';
import { coalesced } from '#base/coalesced.ts';
import { NfsError } from '#wire/nfs3/index.ts';
import { isFull, isRefusal } from '../shelf/files.ts';
import type { Reserve } from '../shelf/place.ts';
import type { NfsFiles } from './files.ts';
import { absentFolderIsAbsent } from './files.ts';

const pieces = 8;
const pieceBytes = 128 * 1024;
/** Below this many times the reserve the room is left to the volumes. */
const plenty = 4;

export interface ReserveParts {
  readonly files: NfsFiles;
  /** `.stowage/reserve`: all hosts share it. */
  readonly folder: string;
  scratch(): string;
  /** What the server has left for this user, in bytes. */
  free(): Promise<bigint>;
}

/** The same as that of a local store, on the server. A piece appears whole, so any host may give up any of them. */
export function createNfsReserve({ files, folder, scratch, free }: ReserveParts): Reserve {
  let givenUp = 0;
  const present = async (): Promise<readonly string[]> => (await absentFolderIsAbsent(files.names(folder))) ?? [];

  // Verbs that find the store full at the same time share one piece.
  const giveUp = coalesced(async () => {
    for (const name of await present()) {
      const path = `${folder}/${name}`;
      const found = await files.attributes(path);
      // Some servers free the blocks of a removed file some time later, those of a shortened one at once.
      if (found !== undefined) await files.remark(path, found).catch(() => false);
      if (await files.unlink(path)) {
        givenUp++;
        return;
      }
    }
  });

  async function make(): Promise<void> {
    const there = new Set(await present());
    const missing = Array.from({ length: pieces }, (_, i) => `${i}`).filter((name) => !there.has(name));
    if (missing.length === 0 || (await free()) < BigInt(missing.length * pieceBytes * plenty)) return;
    await files.makeFolder(folder);
    for (const name of missing) {
      const fresh = scratch();
      // Random, as zeros would take no room where the server compresses.
      await files.writeNew(fresh, randomBytes((pieceBytes * 3) / 4).toString('base64'));
      await files.rename(fresh, `${folder}/${name}`);
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
          // Another verb may have given one up meanwhile: that is as good.
          if (givenUp === before) throw cause;
        }
      }
    },
    refill: async () => {
      await make().catch((cause: unknown) => {
        // A server that has no room, or does not say how much: the reserve stays as it is.
        if (!isRefusal(cause) && !(cause instanceof NfsError)) throw cause;
      });
    },
  };
}
