import { errnoOf } from '#base/errno.ts';
import { type CodeAndReason, StowageError, stowageError } from '#core/errors.ts';
import { RpcError } from '#wire/nfs3/index.ts';
import { XdrError } from '#wire/xdr/reader.ts';
import {
  CallsDenied,
  ClientCertificateRejected,
  causesOf,
  ExportRefused,
  HostNotFound,
  MountServiceUnreachable,
  ServerHangsUp,
  TlsFilesUnreadable,
} from './connection-errors.ts';
import { callsDenied, errnoExplanations, exportRefused } from './refusal-messages.ts';
import { asSystemError } from './system-error.ts';
import {
  clientCertificateRejected,
  garbledReply,
  hostNotFound,
  mountServiceUnreachable,
  rpcFailed,
  serverHangsUp,
  tlsFilesUnreadable,
} from './unreachable-messages.ts';

export type Explanation = CodeAndReason & { readonly why: string; readonly action: string };

/** The store and the server, for error messages. */
export interface ErrorContext {
  readonly store: string;
  /** `server:/export` */
  readonly location: string;
  readonly server: string;
  /** The user id in our calls. */
  readonly uid: number;
  readonly privileged: boolean;
  readonly tls: boolean;
  /** The network that we connect from. Undefined: the host's network. */
  readonly network: string | undefined;
}

/** Turns an error into one for users. Network failures are 'unavailable' or 'deadline', missing permissions are 'denied'. */
export function nfsFailure(thrown: unknown, doing: string, context: ErrorContext): StowageError {
  const explained = stowageErrorIn(thrown);
  if (explained !== undefined) return explained;
  const cause = asSystemError(thrown);
  const found = explain(cause, context);
  if (found === undefined) return stowageError(cause);
  const { why, ...rest } = found;
  const where = doing.includes(context.location) || why.includes(context.location) ? '' : ` (${context.location})`;
  return new StowageError(`${doing}${where} failed: ${why}`, { ...rest, cause });
}

/** Explains an error without naming the operation. */
export function explainNfsError(
  thrown: unknown,
  context: ErrorContext,
): Pick<Explanation, 'why' | 'action'> & { readonly reason: string } {
  const cause = asSystemError(thrown);
  const found = stowageErrorIn(thrown) === undefined ? explain(cause, context) : undefined;
  if (found !== undefined) return found;
  const { message, action, reason } = stowageErrorIn(thrown) ?? stowageError(cause);
  return { why: message, action, reason };
}

const stowageErrorIn = (thrown: unknown): StowageError | undefined =>
  causesOf(thrown).find((error) => error instanceof StowageError);

const mayBeDone = (cause: Error): boolean =>
  causesOf(cause).some((error) => error instanceof RpcError && error.maybeDone);

function explain(cause: unknown, context: ErrorContext): Explanation | undefined {
  if (cause instanceof HostNotFound) return hostNotFound(cause, context);
  if (cause instanceof TlsFilesUnreadable) return tlsFilesUnreadable(cause);
  if (cause instanceof ServerHangsUp) return serverHangsUp(context, mayBeDone(cause));
  if (cause instanceof ClientCertificateRejected) return clientCertificateRejected(context);
  if (cause instanceof MountServiceUnreachable) return mountServiceUnreachable(cause, context);
  if (cause instanceof ExportRefused) return exportRefused(cause.refusal, context);
  if (cause instanceof CallsDenied) return callsDenied(cause, context);
  if (cause instanceof RpcError) return rpcFailed(cause, context);
  if (cause instanceof XdrError) return garbledReply(context);
  const code = errnoOf(cause);
  return code === undefined ? undefined : errnoExplanations[code]?.(context);
}
