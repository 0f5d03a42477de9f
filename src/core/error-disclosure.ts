import { isAccessDenied, refusalToUsers } from './access-denial.ts';
import { errorReason } from './error-reasons.ts';
import { errorCodes, isErrorCode } from './errors.ts';

/** Whether everybody may read the message and the action in full. A reason of another version is for administrators. */
export const isForEverybody = (reason: string): boolean => errorReason(reason)?.readers === 'everybody';

/** What went wrong, in whatever shape it is passed on. */
export interface DisclosableError {
  readonly code: string;
  readonly reason: string;
  readonly message: string;
  readonly action: string;
  /** What they are told who are not administrators, where that is neither all of it nor only what its code says. */
  readonly toUsers?: { readonly message: string; readonly action?: string } | undefined;
}

/**
 * What somebody is told of it who is no administrator. How a store is reached and what else is there is not for them; it is
 * said in short, with how the administrator finds the whole.
 */
export function redactForUser(trouble: DisclosableError, how: string): DisclosableError {
  const { code, reason, toUsers } = trouble;
  if (isAccessDenied(trouble)) {
    const action = `Ask the administrator to grant Stowage access; the reason is found ${how}`;
    return { code, reason, message: toUsers?.message ?? refusalToUsers(trouble), action };
  }
  if (toUsers !== undefined) return { code, reason, action: trouble.action, ...toUsers };
  if (isForEverybody(reason)) return trouble;
  const ask = `sk the administrator, who finds out why ${how}`;
  return {
    code,
    reason,
    message: errorReason(reason)?.short ?? errorCodes[isErrorCode(code) ? code : 'internal'].short,
    action: isErrorCode(code) && errorCodes[code].retry ? `Try again in a while. If it persists, a${ask}` : `A${ask}`,
  };
}
