import type { Log } from '#base/log.ts';
import { errorCodes } from '#core/error-codes.ts';
import { redactForUser } from '#core/error-disclosure.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { refusedByShutdown } from '#core/operation-runner.ts';
import { type GrpcCall, GrpcError, type GrpcStatus } from '#wire/csi/grpc.ts';

const inLog = "in the log of Stowage's server";

/** Reasons for which CSI requires another status than their error code has. */
const statusByReason: Readonly<Record<string, number>> = {
  // CSI: "volume published at target_path but incompatible" is ALREADY_EXISTS.
  'target-taken': errorCodes.exists.grpc,
};

/** Sidecars and the kubelet put the message into Events, which users of the claim or pod can read. It must not contain store addresses. */
function statusFrom(thrown: unknown): GrpcStatus {
  if (thrown instanceof GrpcError) return thrown;
  const error = stowageError(thrown);
  const code = statusByReason[error.reason] ?? errorCodes[error.code].grpc;
  if (error.code === 'internal')
    return { code, message: `internal error of Stowage. Find the cause ${inLog}, and report it.` };
  const { message, action } = redactForUser(error, inLog);
  return { code, message: `${message.replace(/[.\s]+$/, '')}. ${action}`.trim() };
}

/** Reasons to abort a call, as errors of core, so that an aborted operation is recorded as canceled and not as failed. */
export const cancellationErrors = {
  clientGone: (): StowageError =>
    new StowageError('the caller has disconnected', {
      code: 'canceled',
      reason: 'caller-gone',
      action: 'Retry the call; this is safe.',
    }),
  serverStopping: refusedByShutdown,
};

/** Converts errors to statuses and logs them. Never logs the request: it may contain secrets. */
export const statusReporter =
  (log: Log) =>
  (thrown: unknown, { method }: GrpcCall): GrpcStatus => {
    const status = statusFrom(thrown);
    const error = stowageError(thrown);
    const fields = { method, code: status.code };
    if (error.code === 'internal') log.error('CSI call failed', { ...fields, error: thrown });
    else log.info('CSI call was rejected', { ...fields, why: error.message, action: error.action });
    return status;
  };
