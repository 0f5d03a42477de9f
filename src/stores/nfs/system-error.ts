import { NfsError, type NfsStatusName, RemovalRefused } from '#wire/nfs3/index.ts';

/** The errno of an NFS status. All other statuses become EIO. */
const codes: Partial<Readonly<Record<NfsStatusName, string>>> = {
  PERM: 'EPERM',
  NOENT: 'ENOENT',
  ACCES: 'EACCES',
  EXIST: 'EEXIST',
  XDEV: 'EXDEV',
  NOTDIR: 'ENOTDIR',
  ISDIR: 'EISDIR',
  INVAL: 'EINVAL',
  FBIG: 'EFBIG',
  NOSPC: 'ENOSPC',
  ROFS: 'EROFS',
  NAMETOOLONG: 'ENAMETOOLONG',
  NOTEMPTY: 'ENOTEMPTY',
  DQUOT: 'EDQUOT',
  STALE: 'ESTALE',
  BADHANDLE: 'ESTALE',
  NOTSUPP: 'ENOTSUP',
  JUKEBOX: 'EAGAIN',
};

/** An error of the server, with the code that a system call would have. */
class NfsSystemError extends Error {
  override readonly name = 'ServerRefusal';
  readonly code: string;
  constructor(cause: Error, said: NfsError) {
    super(cause.message, { cause });
    this.code = (said.statusName === undefined ? undefined : codes[said.statusName]) ?? 'EIO';
  }
}

/** Converts an NfsError. Returns any other error unchanged. */
export function asSystemError(cause: unknown): unknown {
  const said = cause instanceof RemovalRefused ? cause.cause : cause;
  return said instanceof NfsError ? new NfsSystemError(cause as Error, said) : cause;
}
