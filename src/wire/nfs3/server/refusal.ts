import { errnoOf } from '#base/errno.ts';
import { nfsStatus } from '../status.ts';

/** An NFS error reply. There is one object for each status, since an error with a stack costs more than most calls. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly status: number;
  constructor(status: number) {
    super(`NFS status ${status}`);
    this.status = status;
  }
}

const known = new Map<number, Refusal>(Object.values(nfsStatus).map((status) => [status, new Refusal(status)]));

export function refuse(status: keyof typeof nfsStatus): never {
  throw known.get(nfsStatus[status]) as Refusal;
}

/** Maps system errors to the statuses of RFC 1813, section 2.6. */
const byErrno: Readonly<Record<string, keyof typeof nfsStatus>> = {
  EPERM: 'PERM',
  ENOENT: 'NOENT',
  EIO: 'IO',
  ENXIO: 'NXIO',
  EACCES: 'ACCES',
  EEXIST: 'EXIST',
  EXDEV: 'XDEV',
  ENODEV: 'NODEV',
  ENOTDIR: 'NOTDIR',
  EISDIR: 'ISDIR',
  EINVAL: 'INVAL',
  ELOOP: 'INVAL',
  EFBIG: 'FBIG',
  ENOSPC: 'NOSPC',
  EROFS: 'ROFS',
  EMLINK: 'MLINK',
  ENAMETOOLONG: 'NAMETOOLONG',
  ENOTEMPTY: 'NOTEMPTY',
  EDQUOT: 'DQUOT',
  ESTALE: 'STALE',
  EBUSY: 'ACCES',
  ETXTBSY: 'ACCES',
  ENOTSUP: 'NOTSUPP',
  EOPNOTSUPP: 'NOTSUPP',
  // The shortage is temporary: the client should try again.
  EMFILE: 'JUKEBOX',
  ENFILE: 'JUKEBOX',
  ENOMEM: 'JUKEBOX',
  EAGAIN: 'JUKEBOX',
};

/** Undefined: an internal error, which should be reported. */
export function statusOf(thrown: unknown): number | undefined {
  if (thrown instanceof Refusal) return thrown.status;
  const name = byErrno[errnoOf(thrown) ?? ''];
  return name === undefined ? undefined : nfsStatus[name];
}
