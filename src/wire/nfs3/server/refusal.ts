import { errnoOf } from '#base/errno.ts';
import { errnoByStatus, type NfsStatusName, nfsStatus } from '../status.ts';

/** An NFS error reply. There is one object for each status, since an error with a stack costs more than most calls. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly status: number;
  constructor(status: number) {
    super(`NFS status ${status}`);
    this.status = status;
  }
}

const refusals = new Map<number, Refusal>(Object.values(nfsStatus).map((status) => [status, new Refusal(status)]));

export function refuse(status: NfsStatusName): never {
  throw refusals.get(nfsStatus[status]) as Refusal;
}

/** Maps system errors to the statuses of RFC 1813, section 2.6. */
const byErrno: Readonly<Record<string, NfsStatusName>> = {
  ...Object.fromEntries(Object.entries(errnoByStatus).map(([status, errno]) => [errno, status as NfsStatusName])),
  ELOOP: 'INVAL',
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
