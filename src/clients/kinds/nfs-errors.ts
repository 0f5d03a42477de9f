import { StowageError } from '#core/errors.ts';
import { KeeperError } from '#keeper/protocol.ts';

export function unenforced(): StowageError {
  return new StowageError("the volume is to be held to its size, and the system's NFS client cannot do that", {
    code: 'unsupported',
    reason: 'enforcement-unsupported',
    action: "Have the store's administrator leave out client=host.",
  });
}

export function unwritten(files: number): StowageError {
  return new StowageError(
    `${files === 1 ? 'a file has' : `${files} files have`} data that the server does not have yet, and it does not take them`,
    {
      code: 'busy',
      reason: 'data-unwritten',
      action: 'Wait until the server answers again, and repeat. To give the data up: stowage unmount PATH --force',
    },
  );
}

export function noAnswer(cause: unknown): StowageError {
  const why = cause instanceof KeeperError || cause instanceof Error ? cause.message : String(cause);
  return new StowageError(`the volume was mounted, and its server does not answer for it: ${why}`, {
    code: 'unavailable',
    reason: 'mount-unanswered',
    action: 'See what is wrong with the way to the server: stowage store check STORE',
    cause,
  });
}
