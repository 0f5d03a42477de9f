import { NfsError, type NfsStatusName } from '#wire/nfs3/index.ts';

/** What a status means as a system's error. Those that are not here are what a broken disk would give. */
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

/** The server said no, with the code that a system call would have given. */
class ServerRefusal extends Error {
  override readonly name = 'ServerRefusal';
  readonly code: string;
  constructor(cause: NfsError) {
    super(cause.message, { cause });
    this.code = (cause.statusName === undefined ? undefined : codes[cause.statusName]) ?? 'EIO';
  }
}

/** Anything else is passed on as it is. */
export const asSystemError = (cause: unknown): unknown =>
  cause instanceof NfsError ? new ServerRefusal(cause) : cause;
