import { DeadlineExceeded } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import {
  type FileHandle,
  fileType,
  isNfsError,
  listDirectory,
  type NfsClient,
  nameOf,
  RemovalRefused,
  removeTree,
  walkTree,
} from '#wire/nfs3/index.ts';
import type { ScanResult, Unremovable } from '../file-store/files.ts';
import { asSystemError } from './system-error.ts';

const treesAtOnce = 4;

/** Safe against symbolic links, and against concurrent changes of the tree; see wire/nfs3/walk-tree.ts. */
export async function emptyFolder(
  nfs: NfsClient,
  folder: FileHandle,
  scope: Scope,
  within: { readonly deadlineMs: number },
): Promise<readonly Unremovable[]> {
  const left: Unremovable[] = [];
  const { signal } = scope;
  for await (const page of listDirectory(nfs, folder, { ...within, signal, namesOnly: true }))
    await eachBounded(page, treesAtOnce, async (entry) => {
      try {
        await removeTree(nfs, folder, nameOf(entry), { ...within, signal });
      } catch (thrown) {
        signal.throwIfAborted();
        const cause = asSystemError(thrown);
        // Skip what cannot be removed. If the server does not answer, stop instead of trying the next entry.
        const isLeft =
          thrown instanceof RemovalRefused || isErrno(cause, 'EACCES', 'EPERM', 'EIO', 'ENOTEMPTY', 'EEXIST', 'EROFS');
        if (!isLeft) throw cause;
        left.push({ name: entry.name, why: String(cause) });
        scope.log.warn('deleted data could not be removed', { name: entry.name, cause: String(cause) });
      }
    });
  return left;
}

/** The most files with several names that a scan remembers. With more, its figures are incomplete. */
const maxLinks = 250_000;

export async function scanTree(
  nfs: NfsClient,
  top: FileHandle,
  signal: AbortSignal,
  within: { readonly deadlineMs: number },
): Promise<ScanResult> {
  const { fsid, used } = await nfs.getattr(top, { ...within, signal });
  const linked = new Set<bigint>();
  let bytes = BigInt(used);
  let files = 0n;
  let complete = true;
  try {
    await walkTree(
      nfs,
      top,
      ({ attributes }) => {
        if (attributes.fsid !== fsid) return false;
        if (attributes.type !== fileType.directory && attributes.links > 1) {
          if (linked.has(attributes.fileId)) return true;
          if (linked.size >= maxLinks) complete = false;
          else linked.add(attributes.fileId);
        }
        bytes += BigInt(attributes.used);
        files += 1n;
        return true;
      },
      { ...within, signal },
    );
  } catch (cause) {
    if (!signal.aborted) {
      if (!isNfsError(cause, 'ACCES', 'PERM')) throw cause;
      return { bytes, files, complete: false };
    }
    if (!(signal.reason instanceof DeadlineExceeded)) throw stowageError(signal.reason);
    complete = false;
  }
  return { bytes, files, complete };
}
