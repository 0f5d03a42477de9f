import { accessDeniedMessage, isAccessDenied } from './access-denial.ts';
import { errorCodes, isErrorCode } from './error-codes.ts';
import { errorReason } from './error-reasons.ts';

/** True if every caller may read the full message and action. Unknown reasons, from another version, are for administrators only. */
export const isForEverybody = (reason: string): boolean => errorReason(reason)?.readers === 'everybody';

/** The parts of an error that are shown to callers. */
export interface DisclosableError {
  readonly code: string;
  readonly reason: string;
  readonly message: string;
  readonly action: string;
  /** A special text for callers who are not administrators. */
  readonly toUsers?: { readonly message: string; readonly action?: string } | undefined;
}

/**
 * The error as a caller without administrator rights may read it. The full text can reveal how a store is reached or what else is on the
 * machine, so such callers get a short text. `whereToFind`: completes "the reason is found …".
 */
export function redactForUser(error: DisclosableError, whereToFind: string): DisclosableError {
  const { code, reason, toUsers } = error;
  if (isAccessDenied(error)) {
    const action = `Ask the administrator to grant Stowage access; the reason is found ${whereToFind}`;
    return { code, reason, message: toUsers?.message ?? accessDeniedMessage(error), action };
  }
  if (toUsers !== undefined) return { code, reason, action: error.action, ...toUsers };
  if (isForEverybody(reason)) return error;
  const administrator = `the administrator, who finds out why ${whereToFind}`;
  return {
    code,
    reason,
    message: errorReason(reason)?.short ?? errorCodes[isErrorCode(code) ? code : 'internal'].short,
    action:
      isErrorCode(code) && errorCodes[code].retry
        ? `Try again in a while. If it persists, ask ${administrator}`
        : `Ask ${administrator}`,
  };
}
