import { redactForUser } from '#core/error-disclosure.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { KubeError } from '#wire/kube/errors.ts';
import { codeOf } from './outcome.ts';

/**
 * The note of an Event about an error, on an object that users can read: what failed and what to do, but nothing about the connection to
 * stores, and no text of the API server. These details are only for the log.
 */
export function errorNote(thrown: unknown, adminHint: string): string {
  const { message, action } = redactForUser(disclosable(thrown), adminHint);
  return `${sentence(message)} ${sentence(action)}`;
}

function disclosable(thrown: unknown): Parameters<typeof redactForUser>[0] {
  if (thrown instanceof KubeError) return { code: codeOf(thrown), reason: '', message: '', action: '' };
  return thrown instanceof StowageError ? thrown : stowageError(thrown);
}

function sentence(text: string): string {
  const trimmed = text.trim();
  return /[.!?…]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}
