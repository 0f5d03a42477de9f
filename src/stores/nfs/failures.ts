import { errnoOf } from '#base/errno.ts';
import { type CodeAndReason, StowageError, stowageError } from '#core/errors.ts';
import { RpcError } from '#wire/nfs3/index.ts';
import { XdrError } from '#wire/xdr/reader.ts';
import {
  CertificateWanted,
  causesOf,
  ExportRefused,
  HostUnknown,
  HungUp,
  MountUnanswered,
  NotAdmitted,
  TlsFilesUnreadable,
} from './connection-errors.ts';
import { exportRefused, notAdmitted, refusals } from './refusal-messages.ts';
import { asSystemError } from './system-error.ts';
import {
  certificateWanted,
  garbled,
  hangsUp,
  hostUnknown,
  mountUnanswered,
  tlsFiles,
  unanswered,
} from './unreachable-messages.ts';

export type About = CodeAndReason & { readonly why: string; readonly action: string };

/** What the messages are about. */
export interface Blamed {
  readonly store: string;
  /** `server:/export` */
  readonly place: string;
  readonly server: string;
  /** As whom we speak to the server. */
  readonly uid: number;
  readonly privileged: boolean;
  readonly tls: boolean;
  /** Where our connections start, if not here. */
  readonly network: string | undefined;
}

/** What was thrown, for people. Network trouble is 'unavailable' or 'deadline', trouble with permission is 'denied'. */
export function nfsFailure(thrown: unknown, doing: string, about: Blamed): StowageError {
  const told = toldOf(thrown);
  if (told !== undefined) return told;
  const cause = asSystemError(thrown);
  const found = explain(cause, about);
  if (found === undefined) return stowageError(cause);
  const { why, ...rest } = found;
  const where = doing.includes(about.place) || why.includes(about.place) ? '' : ` (${about.place})`;
  return new StowageError(`${doing}${where} failed: ${why}`, { ...rest, cause });
}

/** The same without what was being done, for who says that otherwise. */
export function nfsTrouble(
  thrown: unknown,
  about: Blamed,
): Pick<About, 'why' | 'action'> & { readonly reason: string } {
  const cause = asSystemError(thrown);
  const found = toldOf(thrown) === undefined ? explain(cause, about) : undefined;
  if (found !== undefined) return found;
  const { message, action, reason } = toldOf(thrown) ?? stowageError(cause);
  return { why: message, action, reason };
}

const toldOf = (thrown: unknown): StowageError | undefined =>
  causesOf(thrown).find((one) => one instanceof StowageError);

const maybeDone = (cause: Error): boolean => causesOf(cause).some((one) => one instanceof RpcError && one.maybeDone);

function explain(cause: unknown, about: Blamed): About | undefined {
  if (cause instanceof HostUnknown) return hostUnknown(cause, about);
  if (cause instanceof TlsFilesUnreadable) return tlsFiles(cause);
  if (cause instanceof HungUp) return hangsUp(about, maybeDone(cause));
  if (cause instanceof CertificateWanted) return certificateWanted(about);
  if (cause instanceof MountUnanswered) return mountUnanswered(cause, about);
  if (cause instanceof ExportRefused) return exportRefused(cause.refusal, about);
  if (cause instanceof NotAdmitted) return notAdmitted(cause, about);
  if (cause instanceof RpcError) return unanswered(cause, about);
  if (cause instanceof XdrError) return garbled(about);
  const code = errnoOf(cause);
  return code === undefined ? undefined : refusals[code]?.(about);
}
