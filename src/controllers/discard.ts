import { type StowageError, stowageError } from '#core/errors.ts';

/**
 * Of a volume that nobody claims and that stays where it is: it may hold something, or cannot be deleted. An agent that is too old to
 * look and delete in one has no such path.
 */
export const isDiscardRefused = ({ code, reason }: StowageError): boolean =>
  code === 'in-use' || ['volume-not-empty', 'store-read-only', 'path-unknown'].includes(reason);

/** The end of a deletion of what is certainly empty. That it is gone already, or stays, is no failure. */
export async function ignoreDiscardRefused(deletion: Promise<unknown>): Promise<void> {
  try {
    await deletion;
  } catch (thrown) {
    const failure = stowageError(thrown);
    if (failure.reason !== 'volume-unknown' && !isDiscardRefused(failure)) throw thrown;
  }
}
