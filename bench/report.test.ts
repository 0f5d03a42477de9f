import { describe, expect, test } from 'vitest';
import { median, report, toRow } from './report.ts';

describe('the median', () => {
  test.each([
    [[3], 3],
    [[5, 1, 3], 3],
    [[4, 1, 3, 2], 2.5],
  ])('of %j is %d', (values, expected) => {
    expect(median(values)).toBe(expected);
  });

  test('of no values is an error', () => {
    expect(() => median([])).toThrow('there is no median of nothing');
  });
});

describe('a row', () => {
  test('has the median of the ratios of all rounds', () => {
    const row = toRow({
      name: 'n',
      unit: '/s',
      values: [10, 100, 30],
      yardsticks: [20, 100, 100],
      goal: { ratioAtLeast: 0.5 },
    });
    expect(row).toEqual({
      name: 'n',
      value: 30,
      unit: '/s',
      yardstick: 100,
      ratio: 0.5,
      goal: 'ratio >= 0.5',
      holds: true,
    });
  });

  test('reports a missed goal', () => {
    expect(toRow({ name: 'n', unit: 'MB', values: [120], goal: { valueBelow: 120 } })).toMatchObject({
      goal: 'value < 120',
      holds: false,
      ratio: null,
    });
    expect(toRow({ name: 'n', unit: '', values: [34], yardsticks: [100], goal: { ratioAtLeast: 0.35 } }).holds).toBe(
      false,
    );
  });

  test('may have a goal for which less is better', () => {
    const row = (value: number) =>
      toRow({ name: 'n', unit: 'µs', values: [value], yardsticks: [10], goal: { ratioAtMost: 1.5 } });
    expect(row(15)).toMatchObject({ goal: 'ratio <= 1.5', ratio: 1.5, holds: true });
    expect(row(15.1)).toMatchObject({ ratio: 1.51, holds: false });
  });

  test('compares the measured value with the goal, not the rounded one', () => {
    const row = toRow({ name: 'n', unit: '', values: [0.349999], yardsticks: [1], goal: { ratioAtLeast: 0.35 } });
    expect(row).toMatchObject({ ratio: 0.35, holds: false });
  });

  test('has no verdict without a goal', () => {
    expect(toRow({ name: 'n', unit: 's', values: [1.23456] })).toMatchObject({ value: 1.235, goal: null, holds: null });
  });
});

test('the report is a table for people and, as its last line, one JSON object', () => {
  const rows = [
    toRow({ name: 'volumes', unit: '/s', values: [1000], yardsticks: [2000], goal: { ratioAtLeast: 0.35 } }),
    toRow({ name: 'memory', unit: 'MB', values: [130], goal: { valueBelow: 120 } }),
  ];
  const lines = report('engine', rows).trimEnd().split('\n');
  expect(JSON.parse(lines.at(-1) ?? '')).toEqual({ bench: 'engine', rows });
  expect(lines.slice(1, 4)).toEqual([
    '         value  unit  yardstick  ratio  goal',
    'volumes   1000  /s         2000    0.5  ratio >= 0.35  holds',
    'memory     130  MB                      value < 120    MISSED',
  ]);
});
