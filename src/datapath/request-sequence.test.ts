import { expect, test } from 'vitest';
import type { Request } from '#wire/fuse/operations.ts';
import { createTurns } from './request-sequence.ts';

const by = (pid: number): Request => ({
  ...{ uid: 0, gid: 0, pid, place: 0, resent: false, signal: new AbortController().signal },
});

function turns() {
  const age = { ms: 0 };
  const made = createTurns({ ageMs: () => age.ms });
  made.begin();
  made.looked(7, by(1));
  made.begin();
  return { ...made, age };
}

test('what was looked up by the request just before is known to whoever did it', () => {
  const { isJustLooked } = turns();
  expect(isJustLooked(7, by(1))).toBe(true);
  expect(isJustLooked(8, by(1))).toBe(false);
  expect(isJustLooked(7, by(2))).toBe(false);
});

test('not after another request, nor when it took long, nor while it is changed', () => {
  const { isJustLooked, begin, age } = turns();
  age.ms = 2;
  expect(isJustLooked(7, by(1))).toBe(false);
  age.ms = Number.POSITIVE_INFINITY;
  expect(isJustLooked(7, by(1))).toBe(false);
  age.ms = 1;
  expect(isJustLooked(7, by(1))).toBe(true);
  begin();
  expect(isJustLooked(7, by(1))).toBe(false);
});
