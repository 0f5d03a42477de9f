import { errorReason } from './error-reasons.ts';

interface Reasoned {
  readonly reason: string;
}

/** A store that could not be opened is `unavailable` because Stowage opens it again by itself; the cause can still be a permission. */
export const isAccessDenied = ({ reason }: Reasoned): boolean => errorReason(reason)?.denial !== undefined;

const notNetwork = 'a permission problem, not a network problem';

/** The text for users: says that it is a permission problem, without naming the server, the export or this host. */
export function refusalToUsers({ reason }: Reasoned, subject = 'the store'): string {
  const mostLikely = errorReason(reason)?.denial?.mostLikely;
  if (mostLikely !== undefined)
    return `the server of ${subject} ${mostLikely}: most likely it does not allow this host, which is ${notNetwork}`;
  return `access to ${subject} is denied: this is ${notNetwork}`;
}
