import { expect, test } from 'vitest';
import type { Row } from './report.ts';
import { compareRows } from './versions.ts';

const row = (name: string, unit: string, value: number, ratio: number | null = null): Row => {
  const goal = ratio === null ? null : 'ratio <= 1.2';
  return { name, unit, value, yardstick: ratio === null ? null : 1, ratio, goal, holds: null };
};

test('versions are compared row by row, by the ratio to other software where there is one', () => {
  const ours = [[row('speed', '/s', 90), row('pause', 'ms', 10), row('claims', 's', 5, 1.1), row('errors', '', 0)]];
  const earlier = [[row('rate', '/s', 100), row('pause', 'ms', 10), row('claims', 's', 9, 1), row('errors', '', 0)]];
  expect(compareRows(ours, earlier)).toMatchObject([
    { name: 'speed', ratio: 0.9, goal: 'ratio >= 0.95', holds: false },
    { name: 'pause', ratio: 1, goal: 'ratio <= 1.05', holds: true },
    { name: 'claims (ratio)', value: 1.1, yardstick: 1, ratio: 1.1, holds: false },
    { name: 'errors', goal: null, holds: null },
  ]);
});

test('versions whose benchmarks have different rows are not compared', () => {
  expect(() => compareRows([[row('speed', '/s', 1)]], [[]])).toThrow('different numbers of rows: 1, 0');
});
