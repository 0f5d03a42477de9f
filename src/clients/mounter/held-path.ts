import { closeSync, constants, fstatSync, openSync, readlinkSync, type Stats } from 'node:fs';
import { open } from 'node:fs/promises';
import { StowageError } from '#core/errors.ts';

/**
 * A place, whatever its name leads to by now. Whoever may write to a folder above it can put a symbolic link there at
 * any moment, and what root then makes, mounts or removes by name happens wherever that leads.
 */
export interface HeldPath extends AsyncDisposable {
  readonly path: string;
  readonly fd: number;
  /** Leads to it in this process, and on to what is in it. */
  readonly through: string;
  readonly stats: Stats;
  /** What it is called now. */
  where(): string;
}

/** open(2): only the place, nothing in it is opened. The same number on every processor that Node runs on. */
export const O_PATH = 0o10000000;

/** A path that does not lead where it says, since a link is in it or at its end, is a 'conflict'. */
export async function holdPath(path: string): Promise<HeldPath> {
  const handle = await open(path, O_PATH | constants.O_NOFOLLOW);
  try {
    const through = `/proc/self/fd/${handle.fd}`;
    // In line: the kernel knows it by heart, whatever disk or server it is on.
    const where = (): string => readlinkSync(through);
    const stats = await handle.stat();
    if (stats.isSymbolicLink() || where() !== path) throw movedAway(path);
    return { path, fd: handle.fd, through, stats, where, [Symbol.asyncDispose]: () => handle.close() };
  } catch (cause) {
    await handle.close();
    throw cause;
  }
}

/** The same in line, for what is ours and has nothing mounted on it: to wait for a thread takes longer than to look. */
export function holdOwnPath(path: string): HeldPath {
  const fd = openSync(path, O_PATH | constants.O_NOFOLLOW);
  try {
    const through = `/proc/self/fd/${fd}`;
    const where = (): string => readlinkSync(through);
    const stats = fstatSync(fd);
    if (stats.isSymbolicLink() || where() !== path) throw movedAway(path);
    return { path, fd, through, stats, where, [Symbol.asyncDispose]: async () => closeSync(fd) };
  } catch (cause) {
    closeSync(fd);
    throw cause;
  }
}

export function movedAway(path: string): StowageError {
  return new StowageError(`${path} leads somewhere else now: it was moved, or a symbolic link was put in its way`, {
    code: 'conflict',
    reason: 'path-moved',
    action: `See who may write to the folders above it (namei -l ${path}), then repeat, or give a path that only root can change.`,
  });
}
