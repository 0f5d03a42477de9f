import { describe, expect, test } from 'vitest';
import { DeadlineExceeded, systemClock } from '#base/clock.ts';
import { errorCodes } from './error-codes.ts';
import { canceled, relayed, StowageError, stowageError } from './errors.ts';

const full = relayed('store gold is full', {
  code: 'exhausted',
  reason: 'disk-full',
  action: 'Free some space.',
  cause: new Error('ENOSPC'),
});

describe('the table of codes', () => {
  test.each(Object.entries(errorCodes))(
    '%s: an HTTP error, a failing exit status and a title',
    (_, { http, exit, title }) => {
      expect(http).toBeGreaterThanOrEqual(400);
      expect(http).toBeLessThan(600);
      expect(exit).toBeGreaterThan(0);
      expect(exit).toBeLessThan(256);
      expect(title).toMatch(/^[A-Z]/);
    },
  );

  test('only temporary conditions are retried', () => {
    const retried = Object.entries(errorCodes).filter(([, { retry }]) => retry);
    expect(retried.map(([code]) => code)).toEqual(['busy', 'canceled', 'unavailable', 'deadline']);
  });

  test('network problems and permission problems have different codes', () => {
    expect(errorCodes.unavailable.http).not.toBe(errorCodes.denied.http);
    expect(errorCodes.unavailable.exit).not.toBe(errorCodes.denied.exit);
  });
});

describe('a StowageError', () => {
  test('says what failed, why, and what to do now', () => {
    expect(full).toMatchObject({
      name: 'StowageError',
      message: 'store gold is full',
      code: 'exhausted',
      reason: 'disk-full',
      action: 'Free some space.',
      cause: { message: 'ENOSPC' },
    });
    expect(full).toBeInstanceOf(Error);
  });
});

describe('code and reason', () => {
  test('the compiler refuses a reason that is not in the table, and a code that the reason does not have', () => {
    // @ts-expect-error: there is no such reason.
    expect(new StowageError('x', { code: 'busy', reason: 'no-such-reason', action: '' }).code).toBe('busy');
    // @ts-expect-error: the reason has the code not-found.
    expect(new StowageError('x', { code: 'busy', reason: 'store-unknown', action: '' }).code).toBe('busy');
  });

  test('an error of another version keeps a reason that the table does not have', () => {
    expect(relayed('x', { code: 'busy', reason: 'no-such-reason', action: '' })).toMatchObject({
      code: 'busy',
      reason: 'no-such-reason',
    });
  });
});

describe('a thrown value', () => {
  test('that is a StowageError is returned unchanged', () => {
    expect(stowageError(full)).toBe(full);
  });

  test('a deadline is a deadline, thrown as it is or as the reason of an abort', async () => {
    const expected = { code: 'deadline', reason: 'deadline', message: 'no answer within 7 ms' };
    expect(stowageError(new DeadlineExceeded(7))).toMatchObject(expected);
    const clock = systemClock();
    using limit = clock.deadline(7, new AbortController().signal);
    const thrown: unknown = await clock.sleep(60_000, limit.signal).catch((error: unknown) => error);
    expect(stowageError(thrown)).toMatchObject(expected);
  });

  test('an abort is a cancellation, and its cause is kept', () => {
    const abort = AbortSignal.abort().reason as DOMException;
    expect(stowageError(abort)).toMatchObject({
      code: 'canceled',
      message: 'the operation was cancelled',
      cause: abort,
    });
  });

  test('an abort whose cause is a StowageError becomes that error', () => {
    expect(stowageError(Object.assign(new Error('aborted', { cause: full }), { name: 'AbortError' }))).toBe(full);
  });

  test.each([
    [new TypeError('x is not a function'), 'x is not a function'],
    ['text', 'text'],
    [undefined, 'undefined'],
    [null, 'null'],
    [42n, '42'],
  ])('%s is a fault of the program, with an action and the cause', (thrown, message) => {
    const error = stowageError(thrown);
    expect(error).toMatchObject({ code: 'internal', reason: 'internal', message });
    expect(error.cause).toBe(thrown);
    expect(error.action).not.toBe('');
  });
});

test('a cancellation may be repeated', () => {
  expect(canceled()).toMatchObject({ code: 'canceled', reason: 'canceled' });
  expect(errorCodes[canceled().code].retry).toBe(true);
});
