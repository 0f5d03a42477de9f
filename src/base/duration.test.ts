import { expect, test } from 'vitest';
import { formatDuration, parseDuration } from './duration.ts';

test.each([
  ['250ms', 250],
  ['90s', 90_000],
  ['15m', 900_000],
  ['12h', 43_200_000],
  ['7d', 604_800_000],
  ['30d', 2_592_000_000],
])('%s is parsed, and formatted the same', (text, ms) => {
  expect(parseDuration(text)).toBe(ms);
  expect(formatDuration(ms)).toBe(text);
});

test('weeks are parsed, and formatted as days', () => {
  expect(parseDuration('2w')).toBe(14 * 86_400_000);
  expect(formatDuration(14 * 86_400_000)).toBe('14d');
});

test.each(['', '7', 'd', '-1d', '1.5h', '1y', '1d2h', '9999999999s'])('%j is not a duration', (text) => {
  expect(parseDuration(text)).toBeUndefined();
});
