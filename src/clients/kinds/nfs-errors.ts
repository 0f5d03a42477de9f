import { StowageError } from '#core/errors.ts';
import { KeeperError } from '#keeper/protocol.ts';

export function enforcementUnsupported(): StowageError {
  return new StowageError("the system's NFS client cannot enforce the size of a volume", {
    code: 'unsupported',
    reason: 'enforcement-unsupported',
    action: "Have the store's administrator remove the option client=host.",
  });
}

export function dataUnwritten(files: number): StowageError {
  return new StowageError(
    `${files === 1 ? 'a file has' : `${files} files have`} unwritten data that the server does not accept`,
    {
      code: 'busy',
      reason: 'data-unwritten',
      action: 'Wait until the server answers again, then retry. To discard the data: stowage unmount PATH --force',
    },
  );
}

export function noAnswer(cause: unknown): StowageError {
  const why = cause instanceof KeeperError || cause instanceof Error ? cause.message : String(cause);
  return new StowageError(`the volume was mounted, but its server does not answer: ${why}`, {
    code: 'unavailable',
    reason: 'mount-unanswered',
    action: 'Check the connection to the server: stowage store check STORE',
    cause,
  });
}
