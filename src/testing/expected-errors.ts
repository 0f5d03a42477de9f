import { expect } from 'vitest';
import { StowageError } from '#core/errors.ts';

/** Returns the StowageError that the promise rejects with. */
export async function refusal(work: Promise<unknown>): Promise<StowageError> {
  const thrown = await work.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  if (thrown instanceof StowageError) return thrown;
  throw new Error(`not refused with a StowageError: ${thrown}`, { cause: thrown });
}

/** Returns the StowageError that the function throws. */
export function refusalOf(work: () => unknown): StowageError {
  try {
    work();
  } catch (thrown) {
    if (thrown instanceof StowageError) return thrown;
    throw thrown;
  }
  throw new Error('not refused');
}

/** `done` on success; otherwise the code or the reason of the StowageError. */
export const outcome = (work: Promise<unknown>, says: 'code' | 'reason'): Promise<string> =>
  work.then(
    () => 'done',
    (cause: unknown) => (cause instanceof StowageError ? cause[says] : String(cause)),
  );

/** The parts of an error that tests compare. */
export interface ExpectedError {
  readonly code: string;
  readonly reason: string;
  readonly message: RegExp;
  readonly action: RegExp;
}

export function expectError(
  error: Pick<StowageError, 'code' | 'reason' | 'message' | 'action'>,
  expected: ExpectedError,
): void {
  expect({ code: error.code, reason: error.reason }).toEqual({ code: expected.code, reason: expected.reason });
  expect(error.message).toMatch(expected.message);
  expect(error.action).toMatch(expected.action);
}
