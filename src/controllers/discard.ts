import { type StowageError, stowageError } from '#core/errors.ts';

/**
 * Whether a volume without a claim has to stay, because it may contain data or cannot be deleted. `path-unknown`: the agent is too old to
 * have the atomic "delete if empty".
 */
export const isDiscardRefused = ({ code, reason }: StowageError): boolean =>
  code === 'in-use' || ['volume-not-empty', 'store-read-only', 'path-unknown'].includes(reason);

/** Awaits a "delete if empty". A volume that is already deleted, or has to stay, is not a failure. */
export async function ignoreDiscardRefused(deletion: Promise<unknown>): Promise<void> {
  try {
    await deletion;
  } catch (thrown) {
    const failure = stowageError(thrown);
    if (failure.reason !== 'volume-unknown' && !isDiscardRefused(failure)) throw thrown;
  }
}
