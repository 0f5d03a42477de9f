import { errorReason } from './error-reasons.ts';

interface ErrorWithReason {
  readonly reason: string;
}

/** Decided by reason, not by code: a store that cannot be opened is `unavailable` since Stowage retries, even if permissions are the cause. */
export const isAccessDenied = ({ reason }: ErrorWithReason): boolean => errorReason(reason)?.denial !== undefined;

const notNetwork = 'a permission problem, not a network problem';

/** The text for users. Names a permission problem as the cause, but not the server, the export or this host. */
export function accessDeniedMessage({ reason }: ErrorWithReason, subject = 'the store'): string {
  const mostLikely = errorReason(reason)?.denial?.mostLikely;
  if (mostLikely !== undefined)
    return `the server of ${subject} ${mostLikely}: most likely it does not allow this host, which is ${notNetwork}`;
  return `access to ${subject} is denied: this is ${notNetwork}`;
}
