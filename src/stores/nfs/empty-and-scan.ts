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

const maxConcurrentTrees = 4;

/** Safe against symbolic links, and against concurrent changes of the tree; see wire/nfs3/walk-tree.ts. */
export async function emptyFolder(
  nfs: NfsClient,
  folder: FileHandle,
  scope: Scope,
  limits: { readonly deadlineMs: number },
): Promise<readonly Unremovable[]> {
  const unremovable: Unremovable[] = [];
  const { signal } = scope;
  for await (const page of listDirectory(nfs, folder, { ...limits, signal, namesOnly: true }))
    await eachBounded(page, maxConcurrentTrees, async (entry) => {
      try {
        await removeTree(nfs, folder, nameOf(entry), { ...limits, signal });
      } catch (thrown) {
        signal.throwIfAborted();
        const cause = asSystemError(thrown);
        // Skip what cannot be removed. If the server does not answer, stop instead of trying the next entry.
        const isUnremovable =
          thrown instanceof RemovalRefused || isErrno(cause, 'EACCES', 'EPERM', 'EIO', 'ENOTEMPTY', 'EEXIST', 'EROFS');
        if (!isUnremovable) throw cause;
        unremovable.push({ name: entry.name, why: String(cause) });
        scope.log.warn('deleted data could not be removed', { name: entry.name, cause: String(cause) });
      }
    });
  return unremovable;
}

/** The maximum number of files with several names that a scan keeps in memory. With more, its result is incomplete. */
const maxCountedLinks = 250_000;

export async function scanTree(
  nfs: NfsClient,
  top: FileHandle,
  signal: AbortSignal,
  limits: { readonly deadlineMs: number },
): Promise<ScanResult> {
  const { fsid, used } = await nfs.getattr(top, { ...limits, signal });
  const countedFileIds = new Set<bigint>();
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
          if (countedFileIds.has(attributes.fileId)) return true;
          if (countedFileIds.size >= maxCountedLinks) complete = false;
          else countedFileIds.add(attributes.fileId);
        }
        bytes += BigInt(attributes.used);
        files += 1n;
        return true;
      },
      { ...limits, signal },
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
