import { closeSync, mkdirSync, openSync, rmdirSync, unlinkSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import { type HeldPath, holdOwnPath } from './held-path.ts';
import type { MountEntry } from './mountinfo.ts';
import type { Parts } from './parts.ts';

/** In the folder of staged mounts, of which they are none. One for what is a folder, one for what is a file. */
const names = { folder: '.bind-folder', file: '.bind-file' };

/** What a crash may leave. */
export const asideNames: readonly string[] = Object.values(names);

/** A remount takes away what it leaves out. */
const kept = ['ro', 'nosuid', 'nodev', 'noexec', 'noatime', 'nodiratime', 'relatime', 'nosymfollow'];

/** The flags that a bind of what is seen through this mount has. */
export const inherited = (source: MountEntry | undefined): readonly string[] =>
  kept.filter((flag) => source?.options.includes(flag) === true);

/**
 * For kernels that give a mount its flags only when it is mounted: it is bound in a folder that only we get to, given its flags
 * there, and bound to its place from there, since a bind has the flags of what it is made of, and its copies elsewhere have
 * those of it. In line from begin to end: there is one such place.
 */
export function bindByAside(
  { calls, aside }: Pick<Parts, 'calls' | 'aside'>,
  origin: HeldPath,
  place: HeldPath,
  flags: readonly string[],
): void {
  if (aside === undefined) throw noAside(place.path);
  const isFolder = origin.stats.isDirectory();
  const name = isFolder ? names.folder : names.file;
  const folder = holdOwnPath(aside);
  const through = `${folder.through}/${name}`;
  // Never held itself: to look at what is mounted is to wait for who serves it.
  const draft = { ...folder, through };
  const clear = (): void => {
    if (attempted(() => calls.detach(folder, name))) attempted(() => (isFolder ? rmdirSync : unlinkSync)(through));
  };
  try {
    // What a crash left.
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

/** What stays is cleared by the next one, or at the next start. */
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
  return new StowageError(`${at} cannot be mounted with its flags: this kernel gives them in a second step`, {
    code: 'unsupported',
    reason: 'mount-flags-refused',
    action: 'Use Linux 5.12 or later.',
  });
}
