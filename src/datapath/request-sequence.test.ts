import { expect, test } from 'vitest';
import type { Request } from '#wire/fuse/operations.ts';
import { createRequestSequence } from './request-sequence.ts';

const requestOf = (pid: number): Request => ({
  uid: 0,
  gid: 0,
  pid,
  slot: 0,
  resent: false,
  signal: new AbortController().signal,
});

function createSequenceAfterLookup() {
  const age = { ms: 0 };
  const newSequence = createRequestSequence({ ageMs: () => age.ms });
  newSequence.startRequest();
  newSequence.recordLookup(7, requestOf(1));
  newSequence.startRequest();
  return { ...newSequence, age };
}

test('a lookup by the request just before is known to the same thread', () => {
  const { wasJustLookedUp } = createSequenceAfterLookup();
  expect(wasJustLookedUp(7, requestOf(1))).toBe(true);
  expect(wasJustLookedUp(8, requestOf(1))).toBe(false);
  expect(wasJustLookedUp(7, requestOf(2))).toBe(false);
});

test('a lookup is not reused after another request, after a long time, or during a change', () => {
  const { wasJustLookedUp, startRequest: begin, age } = createSequenceAfterLookup();
  age.ms = 2;
  expect(wasJustLookedUp(7, requestOf(1))).toBe(false);
  age.ms = Number.POSITIVE_INFINITY;
  expect(wasJustLookedUp(7, requestOf(1))).toBe(false);
  age.ms = 1;
  expect(wasJustLookedUp(7, requestOf(1))).toBe(true);
  begin();
  expect(wasJustLookedUp(7, requestOf(1))).toBe(false);
});
