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
    'maps %s to an HTTP error, a failing exit status and a title',
    (_, { http, exit, title }) => {
      expect(http).toBeGreaterThanOrEqual(400);
      expect(http).toBeLessThan(600);
      expect(exit).toBeGreaterThan(0);
      expect(exit).toBeLessThan(256);
      expect(title).toMatch(/^[A-Z]/);
    },
  );

  test('marks only temporary conditions as retryable', () => {
    const retried = Object.entries(errorCodes).filter(([, { retry }]) => retry);
    expect(retried.map(([code]) => code)).toEqual(['busy', 'canceled', 'unavailable', 'deadline']);
  });

  test('has different codes for network problems and permission problems', () => {
    expect(errorCodes.unavailable.http).not.toBe(errorCodes.denied.http);
    expect(errorCodes.unavailable.exit).not.toBe(errorCodes.denied.exit);
  });
});

describe('a StowageError', () => {
  test('names the failure, the reason and the action', () => {
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

describe('an error', () => {
  test('cannot have a reason that is not in the table, or a code that the reason does not have', () => {
    // @ts-expect-error: there is no such reason.
    expect(new StowageError('x', { code: 'busy', reason: 'no-such-reason', action: '' }).code).toBe('busy');
    // @ts-expect-error: the reason has the code not-found.
    expect(new StowageError('x', { code: 'busy', reason: 'store-unknown', action: '' }).code).toBe('busy');
  });

  test('of another version keeps a reason that is not in the table', () => {
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

  test('that is a deadline has the code deadline, also as the reason of an abort', async () => {
    const expected = { code: 'deadline', reason: 'deadline', message: 'no answer within 7 ms' };
    expect(stowageError(new DeadlineExceeded(7))).toMatchObject(expected);
    const clock = systemClock();
    using limit = clock.deadline(7, new AbortController().signal);
    const thrown: unknown = await clock.sleep(60_000, limit.signal).catch((error: unknown) => error);
    expect(stowageError(thrown)).toMatchObject(expected);
  });

  test('that is an abort has the code canceled, and keeps its cause', () => {
    const abort = AbortSignal.abort().reason as DOMException;
    expect(stowageError(abort)).toMatchObject({
      code: 'canceled',
      message: 'the operation was cancelled',
      cause: abort,
    });
  });

  test('that is an abort because of a StowageError becomes that error', () => {
    expect(stowageError(Object.assign(new Error('aborted', { cause: full }), { name: 'AbortError' }))).toBe(full);
  });

  test.each([
    [new TypeError('x is not a function'), 'x is not a function'],
    ['text', 'text'],
    [undefined, 'undefined'],
    [null, 'null'],
    [42n, '42'],
  ])('that is %s is reported as an internal error with an action and its cause', (thrown, message) => {
    const error = stowageError(thrown);
    expect(error).toMatchObject({ code: 'internal', reason: 'internal', message });
    expect(error.cause).toBe(thrown);
    expect(error.action).not.toBe('');
  });
});

test('that is a cancellation may be retried', () => {
  expect(canceled()).toMatchObject({ code: 'canceled', reason: 'canceled' });
  expect(errorCodes[canceled().code].retry).toBe(true);
});
