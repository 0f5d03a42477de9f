import type { NfsClient } from '#wire/nfs3/client.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type FileHandle, fileType } from '#wire/nfs3/structures.ts';
import { walkTree } from '#wire/nfs3/walk-tree.ts';
import type { CallOptions } from '#wire/rpc/client.ts';

export interface TreeCount {
  readonly bytes: number;
  /** False: parts were not readable, so the real usage is higher. */
  readonly complete: boolean;
}

/** Calls in flight: applications share the server with the count. */
const maxCallsInFlight = 8;
/** Hard-linked files remembered; further ones are counted once per link. */
const maxRememberedLinks = 250_000;

/** Counts the space of a volume's tree on the server, like du. The tree may change meanwhile. */
export async function countTree(nfs: NfsClient, root: FileHandle, options: CallOptions): Promise<TreeCount> {
  const rootAttributes = await nfs.getattr(root, options);
  const countedLinks = new Set<bigint>();
  let bytes = rootAttributes.used;
  try {
    await walkTree(
      nfs,
      root,
      ({ attributes: { fsid, type, links, fileId, used } }) => {
        // Another file system is mounted here: its space is not this volume's.
        if (fsid !== rootAttributes.fsid) return false;
        if (type !== fileType.directory && links > 1) {
          if (countedLinks.has(fileId)) return true;
          if (countedLinks.size < maxRememberedLinks) countedLinks.add(fileId);
        }
        bytes += used;
        return true;
      },
      { ...options, atOnce: maxCallsInFlight },
    );
    return { bytes, complete: true };
  } catch (cause) {
    if (isNfsError(cause, 'ACCES', 'PERM')) return { bytes, complete: false };
    throw cause;
  }
}
