import { DeadlineExceeded } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import { KeeperError } from '#keeper/protocol.ts';

/** Turns a keeper's error, or the lack of a keeper, into a StowageError. */
export function keeperFailure(cause: unknown, folder: string): StowageError {
  if (cause instanceof StowageError) return cause;
  const reason = cause instanceof Error ? cause.message : String(cause);
  if (cause instanceof KeeperError && cause.reason === 'full') {
    return new StowageError(`this node has reached the limit of mounts of one data path: ${reason}`, {
      code: 'exhausted',
      reason: 'data-path-full',
      action: 'Unmount volumes that are no longer used here.',
      cause,
    });
  }
  if (cause instanceof KeeperError && (cause.reason === 'moving' || cause.reason === 'busy')) {
    return new StowageError(`the data path is being replaced: ${reason}`, {
      code: 'busy',
      reason: 'data-path-moving',
      action: 'Try again in a moment.',
      cause,
    });
  }
  if (cause instanceof KeeperError && cause.reason === 'out-of-reach') {
    return new StowageError(`the data path could not be used: ${reason}`, {
      code: 'unavailable',
      reason: 'data-path-unavailable',
      action: 'Restart the container that it runs in. Stowage then remounts the volumes that it serves.',
      cause,
    });
  }
  const isTimeout = cause instanceof DeadlineExceeded;
  return new StowageError(`the data path ${isTimeout ? 'did not answer in time' : `could not be used: ${reason}`}`, {
    code: isTimeout ? 'deadline' : 'unavailable',
    reason: 'data-path-unavailable',
    action: `Try again. If it persists, see why: stowage client status, and the log in ${folder}`,
    cause,
  });
}
