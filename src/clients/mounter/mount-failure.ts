import { SystemError } from '#base/linux/libc.ts';
import { StowageError } from '#core/errors.ts';
import { CommandFailed } from './run-program.ts';

/** Interprets a failed mount by the kernel's errno, or by the message of util-linux in the C locale. */
export function mountFailure(what: string, cause: unknown): unknown {
  if (!(cause instanceof CommandFailed) && !(cause instanceof SystemError)) return cause;
  const reason = cause instanceof SystemError ? cause.code : cause.stderr.toLowerCase();
  if (/permission denied|not permitted|^(?:EACCES|EPERM)$/.test(reason)) {
    return new StowageError(`${what}: the kernel did not permit it`, {
      code: 'denied',
      reason: 'mount-denied',
      action: 'Stowage needs CAP_SYS_ADMIN and a security profile that permits mounts. To check: stowage doctor',
      cause,
    });
  }
  if (/no space left|^ENOSPC$/.test(reason)) {
    return new StowageError(`${what}: this machine has reached its limit of mounts`, {
      code: 'exhausted',
      reason: 'mounts-exhausted',
      action: 'Unmount volumes that are no longer used, or raise the limit: sysctl fs.mount-max',
      cause,
    });
  }
  return new StowageError(`${what} (${cause.message})`, {
    code: 'internal',
    reason: 'mount-failed',
    action: 'Check the kernel log (dmesg | tail), and run: stowage doctor',
    cause,
  });
}
