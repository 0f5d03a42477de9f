import { StowageError } from '#core/errors.ts';
import { CommandFailed } from './run.ts';

/** What a failed mount means; the words are those of util-linux in the C locale. */
export function mountFailure(what: string, cause: unknown): unknown {
  if (!(cause instanceof CommandFailed)) return cause;
  const said = cause.stderr.toLowerCase();
  if (said.includes('permission denied') || said.includes('not permitted')) {
    return new StowageError(`${what}: the kernel did not permit it`, {
      code: 'denied',
      reason: 'mount-denied',
      action: 'Stowage needs CAP_SYS_ADMIN and a security profile that lets it mount. Ask: stowage doctor',
      cause,
    });
  }
  if (said.includes('no space left')) {
    return new StowageError(`${what}: this machine has as many mounts as it may have`, {
      code: 'exhausted',
      reason: 'mounts-exhausted',
      action: 'Unmount what is not needed, or raise the limit: sysctl fs.mount-max',
      cause,
    });
  }
  return new StowageError(`${what} (${cause.message})`, {
    code: 'internal',
    reason: 'mount-failed',
    action: 'Read what the kernel says (dmesg | tail), and ask: stowage doctor',
    cause,
  });
}
