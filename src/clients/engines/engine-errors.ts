import { isErrno } from '#base/errno.ts';
import { canceled, StowageError, stowageError } from '#core/errors.ts';
import { DockerError } from '#wire/docker/errors.ts';

/** Turns any error of a call to a container engine into a StowageError. */
export function engineFailure(cause: unknown, engine: string): StowageError {
  if (!(cause instanceof DockerError)) return stowageError(cause);
  switch (cause.failure) {
    case 'unreachable':
      return isForbidden(cause) ? forbidden(cause, engine) : unreachable(cause, engine);
    case 'lost':
    case 'deadline':
      return unreachable(cause, engine);
    case 'canceled':
      return cause.cause instanceof StowageError ? cause.cause : canceled(cause);
    case 'refused':
      return requestRefused(cause, engine);
    case 'garbled':
      return new StowageError(
        `container engine ${engine} sent an answer that Stowage does not understand (${cause.message})`,
        {
          code: 'unavailable',
          reason: 'engine-answer',
          action: 'Check that the socket belongs to Docker 20.10 or newer, or to Podman 4 or newer: stowage status',
          cause,
        },
      );
    default:
      return cause.failure satisfies never;
  }
}

const isForbidden = ({ cause }: DockerError): boolean => isErrno(cause, 'EACCES', 'EPERM');

function forbidden(cause: DockerError, engine: string): StowageError {
  return new StowageError(`Stowage may not use the socket of container engine ${engine} (${cause.message})`, {
    code: 'denied',
    reason: 'engine-denied',
    action: 'Run Stowage as root or as a member of the group that the socket belongs to.',
    cause,
  });
}

function unreachable(cause: DockerError, engine: string): StowageError {
  return new StowageError(`container engine ${engine} does not answer (${cause.message})`, {
    code: cause.failure === 'deadline' ? 'deadline' : 'unavailable',
    reason: 'engine-unreachable',
    action:
      'Check that it runs (systemctl status docker, or systemctl status podman.socket), then retry. If it was removed, start Stowage with --docker-socket none or --podman-socket none.',
    cause,
  });
}

function requestRefused(cause: DockerError, engine: string): StowageError {
  const isDenied = cause.status === 401 || cause.status === 403;
  return new StowageError(`container engine ${engine} refused the request (${cause.message})`, {
    code: isDenied ? 'denied' : 'unavailable',
    reason: 'engine-refused',
    action: 'Check the log of the engine: journalctl -u docker, or journalctl -u podman.',
    cause,
  });
}
