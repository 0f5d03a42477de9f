import { Errno, type ErrnoName } from '#wire/fuse/errno.ts';
import { NameError } from '#wire/nfs3/names.ts';
import { isNfsError, NfsError, type NfsStatusName } from '#wire/nfs3/status.ts';
import { RpcError, type RpcFailure } from '#wire/rpc/errors.ts';
import { XdrError } from '#wire/xdr/reader.ts';

const errnoByStatus: Readonly<Record<NfsStatusName, ErrnoName>> = {
  PERM: 'EPERM',
  NOENT: 'ENOENT',
  IO: 'EIO',
  NXIO: 'ENXIO',
  ACCES: 'EACCES',
  EXIST: 'EEXIST',
  XDEV: 'EXDEV',
  NODEV: 'ENODEV',
  NOTDIR: 'ENOTDIR',
  ISDIR: 'EISDIR',
  INVAL: 'EINVAL',
  FBIG: 'EFBIG',
  NOSPC: 'ENOSPC',
  ROFS: 'EROFS',
  MLINK: 'EMLINK',
  NAMETOOLONG: 'ENAMETOOLONG',
  NOTEMPTY: 'ENOTEMPTY',
  DQUOT: 'EDQUOT',
  STALE: 'ESTALE',
  REMOTE: 'EREMOTE',
  BADHANDLE: 'ESTALE',
  NOT_SYNC: 'EIO',
  BAD_COOKIE: 'EIO',
  NOTSUPP: 'EOPNOTSUPP',
  TOOSMALL: 'EIO',
  SERVERFAULT: 'EIO',
  // mknod(2): the file system does not have this kind of node.
  BADTYPE: 'EPERM',
  JUKEBOX: 'EIO',
};

const errnoByFailure: Readonly<Record<RpcFailure, ErrnoName>> = {
  unreachable: 'EIO',
  lost: 'EIO',
  deadline: 'EIO',
  canceled: 'EINTR',
  denied: 'EACCES',
  unsupported: 'EIO',
  'no-procedure': 'EOPNOTSUPP',
  garbled: 'EIO',
  tls: 'EIO',
  closed: 'EIO',
};

/** Maps an error to the errno for the application. Anything else is a bug and is returned unchanged. */
export function asErrno(cause: unknown): unknown {
  if (cause instanceof NfsError)
    return new Errno(cause.statusName === undefined ? 'EIO' : errnoByStatus[cause.statusName], cause);
  if (cause instanceof RpcError) return new Errno(errnoByFailure[cause.failure], cause);
  if (cause instanceof NameError) return new Errno('ENAMETOOLONG', cause);
  if (cause instanceof XdrError) return new Errno('EIO', cause);
  return cause;
}

/** The server does not know the handle (any longer). */
export const isStale = (cause: unknown): boolean => isNfsError(cause, 'STALE', 'BADHANDLE');

/** The call was not executed and may succeed on retry. */
export const isTransient = (cause: unknown): boolean =>
  isNfsError(cause, 'JUKEBOX') || (cause instanceof RpcError && cause.failure === 'unreachable' && !cause.maybeDone);

/** Whether the call was certainly not executed: the server rejected it, or it was never sent. */
export const isNotExecuted = (cause: unknown): boolean => !(cause instanceof RpcError && cause.maybeDone);
