import { expect, test } from 'vitest';
import { problemDocument, problemIn } from './problem.ts';

const fields = { title: 'Not found', status: 404, requestId: 'r-1' };

test('a document has the members of RFC 9457 and ours, without control characters', () => {
  const error = { code: 'not-found', reason: 'volume-not-found', message: 'no\x1b volume', action: 'Look\n.' };
  expect(problemDocument({ error, ...fields })).toEqual({
    type: 'https://stowage.dev/errors/volume-not-found',
    title: 'Not found',
    status: 404,
    detail: 'no\\u{1b} volume',
    code: 'not-found',
    reason: 'volume-not-found',
    action: 'Look\\u{a}.',
    requestId: 'r-1',
  });
});

test('the message of an internal error is not sent', () => {
  const error = { code: 'internal', reason: 'internal', message: 'at line 7', action: 'Report it.' };
  expect(problemDocument({ error, ...fields }).detail).toBe('Stowage failed to do this');
});

test('a document is parsed as it was written', () => {
  const error = { code: 'busy', reason: 'operation-running', message: 'busy', action: 'Wait.' };
  const { code, reason, detail, action } = problemDocument({ error, ...fields });
  expect(problemIn({ code, reason, detail, action, more: 1 })).toEqual({ code, reason, detail, action });
  expect(problemIn({ code, detail, reason: 1 })).toEqual({ code, reason: '', detail, action: '' });
});

test.each([
  [undefined],
  [null],
  ['text'],
  [{}],
  [{ code: 'busy' }],
  [{ detail: 'busy' }],
  [{ code: 1, detail: 'busy' }],
])('%o is not a problem document', (body) => {
  expect(problemIn(body)).toBe(undefined);
});
