import { realpathSync } from 'node:fs';
import { realpath } from 'node:fs/promises';
import { basename, dirname, join, normalize } from 'node:path';
import { isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import { quoted } from '#core/names.ts';

/** Limits of the kernel, in bytes: PATH_MAX less its terminator, NAME_MAX. */
const maxPathBytes = 4095;
const maxNameBytes = 255;

/** Every path handed to a program must pass this: an absolute path cannot be taken for an option, and without `.`, `..` and `//` it hides nothing. */
export function checkPath(path: string): void {
  const wrong = pathProblem(path);
  if (wrong === undefined) return;
  throw new StowageError(`${quoted(path)} cannot be used as a path: ${wrong}`, {
    code: 'invalid',
    reason: 'path-invalid',
    action: 'Give an absolute path without . or .. in it, for example /mnt/data.',
  });
}

function pathProblem(path: string): string | undefined {
  if (!path.startsWith('/')) return 'it does not begin with /';
  if (path.includes('\0')) return 'it contains a NUL character';
  if (Buffer.byteLength(path) > maxPathBytes) return `it is longer than ${maxPathBytes} bytes`;
  if (path !== '/' && (path.endsWith('/') || normalize(path) !== path))
    return 'it is not normalized: it contains ., .. or //, or ends with /';
  if (path.split('/').some((name) => Buffer.byteLength(name) > maxNameBytes))
    return `a name in it is longer than ${maxNameBytes} bytes`;
  return undefined;
}

/**
 * The path as the mount table shows it: symbolic links in its parents are resolved. The last component is not accessed, since accessing a
 * mount whose server is gone can fail or hang. Undefined: a parent is missing.
 */
export async function resolveParents(path: string): Promise<string | undefined> {
  checkPath(path);
  if (path === '/') return path;
  try {
    return join(await realpath(dirname(path)), basename(path));
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR')) return undefined;
    throw cause;
  }
}

/** The synchronous form, for paths directly in one of Stowage's own folders. */
export function resolveOwnParents(path: string): string | undefined {
  checkPath(path);
  try {
    return join(realpathSync.native(dirname(path)), basename(path));
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR')) return undefined;
    throw cause;
  }
}

/** Returns undefined if the file does not exist. */
export async function undefinedIfMissing<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR')) return undefined;
    throw cause;
  }
}
