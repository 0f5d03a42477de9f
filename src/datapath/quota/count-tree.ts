import type { NfsClient } from '#wire/nfs3/client.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type FileHandle, fileType } from '#wire/nfs3/structures.ts';
import { walkTree } from '#wire/nfs3/tree.ts';
import type { CallOptions } from '#wire/rpc/client.ts';

export interface Counted {
  readonly bytes: number;
  /** False: some of it could not be looked at, so it is more. */
  readonly complete: boolean;
}

/** Calls under way at once: applications share the server with it. */
const atOnce = 8;
/** Files with several names that are remembered; further ones are counted by each name. */
const mostLinks = 250_000;

/** What a volume's tree occupies on the server, as du counts it. Others may be changing it meanwhile. */
export async function countTree(nfs: NfsClient, root: FileHandle, options: CallOptions): Promise<Counted> {
  const top = await nfs.getattr(root, options);
  const linked = new Set<bigint>();
  let bytes = top.used;
  try {
    await walkTree(
      nfs,
      root,
      ({ attributes: { fsid, type, links, fileId, used } }) => {
        // Another file system is mounted there: its room is not this volume's.
        if (fsid !== top.fsid) return false;
        if (type !== fileType.directory && links > 1) {
          if (linked.has(fileId)) return true;
          if (linked.size < mostLinks) linked.add(fileId);
        }
        bytes += used;
        return true;
      },
      { ...options, atOnce },
    );
    return { bytes, complete: true };
  } catch (cause) {
    if (isNfsError(cause, 'ACCES', 'PERM')) return { bytes, complete: false };
    throw cause;
  }
}
