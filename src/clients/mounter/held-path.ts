import { closeSync, constants, fstatSync, openSync, readlinkSync, type Stats } from 'node:fs';
import { open } from 'node:fs/promises';
import { StowageError } from '#core/errors.ts';

/**
 * An open path. A user who can write to a folder above a path can replace a component of it with a symbolic link at any moment. If root
 * then used the path by name, it would create, mount or remove something wherever the link leads.
 */
export interface HeldPath extends AsyncDisposable {
  readonly path: string;
  readonly fd: number;
  /** The path through /proc/self/fd. It stays valid in this process, and can be extended with names below it. */
  readonly procPath: string;
  readonly stats: Stats;
  /** Where the open file or folder is now. */
  currentPath(): string;
}

/** open(2): opens the path without opening the file. The value is the same on every processor that Node runs on. */
export const O_PATH = 0o10000000;

/** Throws 'conflict' if a component of the path, or its end, is a symbolic link. */
export async function holdPath(path: string): Promise<HeldPath> {
  const handle = await open(path, O_PATH | constants.O_NOFOLLOW);
  try {
    const procPath = `/proc/self/fd/${handle.fd}`;
    // Synchronous: the kernel answers from memory, whatever disk or server the path is on.
    const currentPath = (): string => readlinkSync(procPath);
    const stats = await handle.stat();
    if (stats.isSymbolicLink() || currentPath() !== path) throw movedAway(path);
    return {
      path,
      fd: handle.fd,
      procPath,
      stats,
      currentPath,
      [Symbol.asyncDispose]: () => handle.close(),
    };
  } catch (cause) {
    await handle.close();
    throw cause;
  }
}

/** The synchronous form, for our own folders with nothing mounted on them: a round trip through the thread pool takes longer than the call. */
export function holdOwnPath(path: string): HeldPath {
  const fd = openSync(path, O_PATH | constants.O_NOFOLLOW);
  try {
    const procPath = `/proc/self/fd/${fd}`;
    const currentPath = (): string => readlinkSync(procPath);
    const stats = fstatSync(fd);
    if (stats.isSymbolicLink() || currentPath() !== path) throw movedAway(path);
    return { path, fd, procPath, stats, currentPath, [Symbol.asyncDispose]: async () => closeSync(fd) };
  } catch (cause) {
    closeSync(fd);
    throw cause;
  }
}

export function movedAway(path: string): StowageError {
  return new StowageError(`${path} now leads elsewhere: it was moved, or a symbolic link replaced a part of it`, {
    code: 'conflict',
    reason: 'path-moved',
    action: `Check which users can write to the folders above it (namei -l ${path}), then retry, or give a path that only root can change.`,
  });
}
