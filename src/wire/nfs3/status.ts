/** RFC 1813, section 2.6: the error statuses. */
export const nfsStatus = {
  PERM: 1,
  NOENT: 2,
  IO: 5,
  NXIO: 6,
  ACCES: 13,
  EXIST: 17,
  XDEV: 18,
  NODEV: 19,
  NOTDIR: 20,
  ISDIR: 21,
  INVAL: 22,
  FBIG: 27,
  NOSPC: 28,
  ROFS: 30,
  MLINK: 31,
  NAMETOOLONG: 63,
  NOTEMPTY: 66,
  DQUOT: 69,
  STALE: 70,
  REMOTE: 71,
  BADHANDLE: 10001,
  NOT_SYNC: 10002,
  BAD_COOKIE: 10003,
  NOTSUPP: 10004,
  TOOSMALL: 10005,
  SERVERFAULT: 10006,
  BADTYPE: 10007,
  JUKEBOX: 10008,
} as const;

export type NfsStatusName = keyof typeof nfsStatus;

/** The errno that a status is named for. The numbers differ. */
export const errnoByStatus = {
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
} as const satisfies Partial<Record<NfsStatusName, string>>;

/** Maps statuses to names. */
export const namesByStatus = <N extends string>(statuses: Readonly<Record<N, number>>): ReadonlyMap<number, N> =>
  new Map(Object.entries<number>(statuses).map(([name, status]) => [status, name as N]));

const names = namesByStatus(nfsStatus);

/**
 * The server returned an error status. It has no stack trace: the stack would always show the decoder, and capturing it costs
 * more than the call.
 */
export class NfsError extends Error {
  override readonly name = 'NfsError';
  readonly status: number;
  /** Undefined if RFC 1813 does not define the status. */
  readonly statusName: NfsStatusName | undefined;
  readonly procedure: string;
  /** The call was sent twice, so this may be the reply to the second of two executions. */
  readonly resent: boolean;
  constructor(procedure: string, status: number, resent: boolean) {
    const known = names.get(status);
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = 0;
    super(`${procedure}: ${known === undefined ? `status ${status}` : `NFS3ERR_${known}`}`);
    Error.stackTraceLimit = stackTraceLimit;
    this.status = status;
    this.statusName = known;
    this.procedure = procedure;
    this.resent = resent;
  }
}

export const isNfsError = (thrown: unknown, ...which: readonly NfsStatusName[]): thrown is NfsError =>
  thrown instanceof NfsError && thrown.statusName !== undefined && which.includes(thrown.statusName);

/** The entry or its directory no longer exists: another client removed it. */
export const isGone = (thrown: unknown): boolean => isNfsError(thrown, 'NOENT', 'STALE', 'BADHANDLE');
