import { errnoByStatus, NfsError, type NfsStatusName, RemovalRefused } from '#wire/nfs3/index.ts';

const errnoByNfsStatus: Partial<Readonly<Record<NfsStatusName, string>>> = {
  ...errnoByStatus,
  BADHANDLE: 'ESTALE',
  NOTSUPP: 'ENOTSUP',
  JUKEBOX: 'EAGAIN',
  // These have no explanation of their own (refusal-messages.ts).
  NXIO: 'EIO',
  NODEV: 'EIO',
  MLINK: 'EIO',
  REMOTE: 'EIO',
};

/** An error of the server, with the code that a system call would have. */
class NfsSystemError extends Error {
  override readonly name = 'ServerRefusal';
  readonly code: string;
  constructor(cause: Error, nfsError: NfsError) {
    super(cause.message, { cause });
    this.code = (nfsError.statusName === undefined ? undefined : errnoByNfsStatus[nfsError.statusName]) ?? 'EIO';
  }
}

/** Converts an NfsError. Returns any other error unchanged. */
export function asSystemError(cause: unknown): unknown {
  const nfsError = cause instanceof RemovalRefused ? cause.cause : cause;
  return nfsError instanceof NfsError ? new NfsSystemError(cause as Error, nfsError) : cause;
}
