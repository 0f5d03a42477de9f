import { errnoOf } from '#base/errno.ts';
import { type CodeAndReason, StowageError, stowageError } from '#core/errors.ts';

type Explanation = CodeAndReason & { readonly why: string; readonly action: string };

/** Explains errors of system calls on the store's directory to users. */
const explanationByErrno: Readonly<Record<string, (root: string) => Explanation>> = {
  ENOSPC: (root) => ({
    code: 'exhausted',
    reason: 'store-full',
    why: `no space left on the file system of ${root}`,
    action: `Free some space there (df -h ${root}; df -i ${root}), or delete volumes that are no longer needed.`,
  }),
  EDQUOT: (root) => ({
    code: 'exhausted',
    reason: 'store-quota',
    why: `the disk quota for ${root} is used up`,
    action: `Have the quota on ${root} raised, or delete volumes that are no longer needed.`,
  }),
  EROFS: (root) => ({
    code: 'denied',
    reason: 'store-file-system-read-only',
    why: `the file system of ${root} is mounted read-only`,
    action: 'Remount it read-write (after an error, check dmesg first), or set readOnly=true on the store.',
  }),
  EACCES: (root) => permission(root),
  EPERM: (root) => permission(root),
  EBUSY: (root) => ({
    code: 'in-use',
    reason: 'volume-data-busy',
    why: 'something is mounted on its data',
    action: `Find the mount with: grep ${root} /proc/self/mountinfo; unmount it and try again.`,
  }),
  EFBIG: (root) => ({
    code: 'out-of-range',
    reason: 'file-too-large',
    why: `the file system of ${root} cannot hold a file of that size`,
    action: 'Request a smaller volume, or move the store to a file system that allows larger files, such as xfs.',
  }),
  EXDEV: (root) => ({
    code: 'unsupported',
    reason: 'store-cannot-move',
    why: `the file system of ${root} cannot move data within the store; an overlay cannot move directories of its lower layers`,
    action: `Put the store on its own disk or volume (findmnt -T ${root} shows where it is now), in one mount and one quota project.`,
  }),
  EMFILE: () => tooManyFiles,
  ENFILE: () => tooManyFiles,
  EIO: (root) => ioError(root),
  ESTALE: (root) => ioError(root),
  ENOTCONN: (root) => ioError(root),
  ENOENT: (root) => ({
    code: 'unavailable',
    reason: 'store-damaged',
    why: `another program removed a part of ${root}`,
    action: `Restart Stowage, which recreates missing parts of ${root}/.stowage.`,
  }),
};

const permission = (root: string): Explanation => ({
  code: 'denied',
  reason: 'store-permission',
  why: `permission denied in ${root} for the user that Stowage runs as`,
  action: `Give that user ownership of ${root} (chown), or run Stowage as root.`,
});

const ioError = (root: string): Explanation => ({
  code: 'unavailable',
  reason: 'store-io-error',
  why: `the file system of ${root} returned an input/output error`,
  action: 'Check dmesg for errors of the disk or the server behind it, and try again when it is healthy.',
});

const tooManyFiles: Explanation = {
  code: 'unavailable',
  reason: 'too-many-open-files',
  why: 'the limit of open files is reached',
  action: 'Raise the limit of open files for Stowage (ulimit -n, or LimitNOFILE in its unit).',
};

/** `doing` completes "… failed": 'creating volume a'. */
export function storeFailure(cause: unknown, doing: string, root: string): StowageError {
  const code = errnoOf(cause);
  const explanation =
    code === undefined || cause instanceof StowageError ? undefined : explanationByErrno[code]?.(root);
  if (explanation === undefined) return stowageError(cause);
  const { why, ...rest } = explanation;
  return new StowageError(`${doing} failed: ${why}`, { ...rest, cause });
}

export function rootMissing(root: string, cause?: unknown): StowageError {
  return new StowageError(`the store's directory ${root} does not exist`, {
    code: 'unavailable',
    reason: 'store-root-missing',
    action: `Mount the disk that holds it, or create the directory if the store is new: mkdir -p ${root}`,
    cause,
  });
}

export function rootChanged(root: string): StowageError {
  return new StowageError(`${root} is no longer the directory that the store was opened in`, {
    code: 'unavailable',
    reason: 'store-root-changed',
    action:
      'Put the original directory or disk back in its place (compare with: findmnt). If the new one is meant to be the store, restart Stowage.',
  });
}
