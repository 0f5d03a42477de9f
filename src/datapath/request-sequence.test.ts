import { expect, test } from 'vitest';
import type { Request } from '#wire/fuse/operations.ts';
import { createRequestSequence } from './request-sequence.ts';

const by = (pid: number): Request => ({
  uid: 0,
  gid: 0,
  pid,
  slot: 0,
  resent: false,
  signal: new AbortController().signal,
});

function sequence() {
  const age = { ms: 0 };
  const made = createRequestSequence({ ageMs: () => age.ms });
  made.begin();
  made.lookedUp(7, by(1));
  made.begin();
  return { ...made, age };
}

test('a lookup by the request just before is known to the same thread', () => {
  const { wasJustLookedUp } = sequence();
  expect(wasJustLookedUp(7, by(1))).toBe(true);
  expect(wasJustLookedUp(8, by(1))).toBe(false);
  expect(wasJustLookedUp(7, by(2))).toBe(false);
});

test('a lookup is not reused after another request, after a long time, or during a change', () => {
  const { wasJustLookedUp, begin, age } = sequence();
  age.ms = 2;
  expect(wasJustLookedUp(7, by(1))).toBe(false);
  age.ms = Number.POSITIVE_INFINITY;
  expect(wasJustLookedUp(7, by(1))).toBe(false);
  age.ms = 1;
  expect(wasJustLookedUp(7, by(1))).toBe(true);
  begin();
  expect(wasJustLookedUp(7, by(1))).toBe(false);
});
