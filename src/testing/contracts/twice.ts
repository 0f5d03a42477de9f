import { expect } from 'vitest';
import { StowageError } from '#core/errors.ts';

/** Makes the call twice, and checks that the second call returns the same as the first. */
export async function twice<T>(call: () => Promise<T>): Promise<T> {
  const first = await call();
  expect(await call()).toEqual(first);
  return first;
}

/** Makes the call twice, and checks that both fail with the same error. */
export async function refused(call: () => Promise<unknown>): Promise<StowageError> {
  const errors = [];
  for (let i = 0; i < 2; i++) {
    try {
      await call();
    } catch (thrown) {
      errors.push(thrown);
    }
  }
  const [first, second] = errors;
  if (!(first instanceof StowageError) || !(second instanceof StowageError)) throw new Error(`not refused: ${errors}`);
  expect([second.code, second.reason, second.message]).toEqual([first.code, first.reason, first.message]);
  expect(first.action).not.toBe('');
  return first;
}
