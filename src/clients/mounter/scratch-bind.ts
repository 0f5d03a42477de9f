import { closeSync, mkdirSync, openSync, rmdirSync, unlinkSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import { type HeldPath, holdOwnPath } from './held-path.ts';
import type { MounterParts } from './mounter-parts.ts';
import type { MountEntry } from './mountinfo.ts';

/** Scratch mount points in the folder of staged mounts: one for folders, one for files. */
const names = { folder: '.bind-folder', file: '.bind-file' };

/** A crash may leave these behind. */
export const scratchNames: readonly string[] = Object.values(names);

/** MS_REMOUNT clears every flag that is not given again. */
const remountFlags = ['ro', 'nosuid', 'nodev', 'noexec', 'noatime', 'nodiratime', 'relatime', 'nosymfollow'];

/** The flags that a bind mount inherits from the mount that it is made of. */
export const inheritedFlags = (source: MountEntry | undefined): readonly string[] =>
  remountFlags.filter((flag) => source?.options.includes(flag) === true);

/**
 * For kernels that cannot set flags on a bind mount before it is attached. Binds into a scratch folder that only Stowage can reach, sets
 * the flags there and binds the result to the target: a bind inherits the flags of the mount that it is made of, and so do its copies in
 * other mount namespaces. Synchronous throughout, since there is only one scratch mount point.
 */
export function bindThroughScratch(
  { calls, scratchFolder }: Pick<MounterParts, 'calls' | 'scratchFolder'>,
  origin: HeldPath,
  target: HeldPath,
  flags: readonly string[],
): void {
  if (scratchFolder === undefined) throw noScratchFolder(target.path);
  const isFolder = origin.stats.isDirectory();
  const name = isFolder ? names.folder : names.file;
  const folder = holdOwnPath(scratchFolder);
  const procPath = `${folder.procPath}/${name}`;
  // Never opened: opening a mount can wait for its server.
  const scratchMount = { ...folder, procPath };
  const clear = (): void => {
    if (tryTo(() => calls.detach(folder, name))) tryTo(() => (isFolder ? rmdirSync : unlinkSync)(procPath));
  };
  try {
    // Remove what a crash left.
    clear();
    makeScratch(procPath, isFolder);
    try {
      calls.bind(origin, scratchMount);
      calls.remount(scratchMount, flags);
      calls.bind(scratchMount, target);
    } finally {
      clear();
    }
  } finally {
    closeSync(folder.fd);
  }
}

/** On failure the leftover stays until the next bind or the next start clears it. */
function tryTo(work: () => void): boolean {
  try {
    work();
    return true;
  } catch {
    return false;
  }
}

function makeScratch(path: string, isFolder: boolean): void {
  try {
    if (isFolder) mkdirSync(path, 0o700);
    else closeSync(openSync(path, 'wx', 0o600));
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST')) throw cause;
  }
}

function noScratchFolder(at: string): StowageError {
  return new StowageError(`${at} cannot be mounted with its flags: this kernel sets them only in a second step`, {
    code: 'unsupported',
    reason: 'mount-flags-refused',
    action: 'Use Linux 5.12 or later.',
  });
}
