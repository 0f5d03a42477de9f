/** The errors that a FUSE reply can have, with their Linux numbers (the same on x86 and arm64). */
export const errno = {
  EPERM: 1,
  ENOENT: 2,
  EINTR: 4,
  EIO: 5,
  ENXIO: 6,
  E2BIG: 7,
  EBADF: 9,
  EAGAIN: 11,
  ENOMEM: 12,
  EACCES: 13,
  EBUSY: 16,
  EEXIST: 17,
  EXDEV: 18,
  ENODEV: 19,
  ENOTDIR: 20,
  EISDIR: 21,
  EINVAL: 22,
  EFBIG: 27,
  ENOSPC: 28,
  EROFS: 30,
  EMLINK: 31,
  ERANGE: 34,
  EDEADLK: 35,
  ENAMETOOLONG: 36,
  ENOLCK: 37,
  ENOSYS: 38,
  ENOTEMPTY: 39,
  ELOOP: 40,
  ENODATA: 61,
  EREMOTE: 66,
  EPROTO: 71,
  EOVERFLOW: 75,
  EOPNOTSUPP: 95,
  ETIMEDOUT: 110,
  ESTALE: 116,
  EDQUOT: 122,
} as const;
export type ErrnoName = keyof typeof errno;

/**
 * Operations throw it to reply with an error. Any other exception is answered with EIO and reported. It has no stack trace:
 * no log shows it, and capturing one costs more than many requests.
 */
export class Errno extends Error {
  override readonly name = 'Errno';
  readonly code: ErrnoName;
  constructor(code: ErrnoName, cause?: unknown) {
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = 0;
    super(code, cause === undefined ? undefined : { cause });
    Error.stackTraceLimit = stackTraceLimit;
    this.code = code;
  }
}
