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
const kept = ['ro', 'nosuid', 'nodev', 'noexec', 'noatime', 'nodiratime', 'relatime', 'nosymfollow'];

/** The flags that a bind mount inherits from the mount that it is made of. */
export const inherited = (source: MountEntry | undefined): readonly string[] =>
  kept.filter((flag) => source?.options.includes(flag) === true);

/**
 * For kernels that cannot set flags on a bind mount before it is attached. Binds into a scratch folder that only Stowage can reach, sets
 * the flags there and binds the result to its place: a bind inherits the flags of the mount that it is made of, and so do its copies in
 * other mount namespaces. Synchronous throughout, since there is only one scratch place.
 */
export function bindThroughScratch(
  { calls, aside }: Pick<MounterParts, 'calls' | 'aside'>,
  origin: HeldPath,
  place: HeldPath,
  flags: readonly string[],
): void {
  if (aside === undefined) throw noAside(place.path);
  const isFolder = origin.stats.isDirectory();
  const name = isFolder ? names.folder : names.file;
  const folder = holdOwnPath(aside);
  const through = `${folder.through}/${name}`;
  // Never opened: opening a mount can wait for its server.
  const draft = { ...folder, through };
  const clear = (): void => {
    if (attempted(() => calls.detach(folder, name))) attempted(() => (isFolder ? rmdirSync : unlinkSync)(through));
  };
  try {
    // Left by a crash.
    clear();
    make(through, isFolder);
    try {
      calls.bind(origin, draft);
      calls.remount(draft, flags);
      calls.bind(draft, place);
    } finally {
      clear();
    }
  } finally {
    closeSync(folder.fd);
  }
}

/** On failure the leftover stays until the next bind or the next start clears it. */
function attempted(work: () => void): boolean {
  try {
    work();
    return true;
  } catch {
    return false;
  }
}

function make(path: string, isFolder: boolean): void {
  try {
    if (isFolder) mkdirSync(path, 0o700);
    else closeSync(openSync(path, 'wx', 0o600));
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST')) throw cause;
  }
}

function noAside(at: string): StowageError {
  return new StowageError(`${at} cannot be mounted with its flags: this kernel sets them only in a second step`, {
    code: 'unsupported',
    reason: 'mount-flags-refused',
    action: 'Use Linux 5.12 or later.',
  });
}
