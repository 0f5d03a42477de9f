import type { Log } from '#base/log.ts';
import { toldToUser } from '#core/error-disclosure.ts';
import { errorCodes, StowageError, stowageError } from '#core/errors.ts';
import { refusedWhileStopping } from '#core/operation-runner.ts';
import { type GrpcCall, GrpcError, type GrpcStatus } from '#wire/csi/grpc.ts';

const inLog = "in the log of Stowage's server";

/** Reasons for which CSI wants another status than the one that their code has everywhere else. */
const statusByReason: Readonly<Record<string, number>> = {
  // Published at that path in another way.
  'target-taken': errorCodes.exists.grpc,
};

/** What is in it becomes an Event that whoever uses the claim or pod can read: how a store is reached is not for them. */
function statusFrom(thrown: unknown): GrpcStatus {
  if (thrown instanceof GrpcError) return thrown;
  const error = stowageError(thrown);
  const code = statusByReason[error.reason] ?? errorCodes[error.code].grpc;
  if (error.code === 'internal')
    return { code, message: `Stowage failed to do this. Look why ${inLog}, and report it.` };
  const { message, action } = toldToUser(error, inLog);
  return { code, message: `${message.replace(/[.\s]+$/, '')}. ${action}`.trim() };
}

/** As core knows errors: what it was doing then did not fail by a fault of its own, and is recorded as what it is. */
export const cancellationErrors = {
  gone: (): StowageError =>
    new StowageError('the caller has gone', {
      code: 'canceled',
      reason: 'caller-gone',
      action: 'Repeat the call; repeating is safe.',
    }),
  stopping: refusedWhileStopping,
};

/** Nothing of the request: it may hold secrets. */
export const statusReporter =
  (log: Log) =>
  (thrown: unknown, { method }: GrpcCall): GrpcStatus => {
    const status = statusFrom(thrown);
    const error = stowageError(thrown);
    const about = { method, code: status.code };
    if (error.code === 'internal') log.error('a call of CSI failed', { ...about, error: thrown });
    else log.info('a call of CSI was refused', { ...about, why: error.message, action: error.action });
    return status;
  };
