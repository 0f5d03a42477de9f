/**
 * One row of a benchmark's result. `yardstick` and `ratio` are null without a comparison, `goal` and `holds` without a
 * goal.
 */
export interface Row {
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  readonly yardstick: number | null;
  readonly ratio: number | null;
  readonly goal: string | null;
  readonly holds: boolean | null;
}

export interface Measured {
  readonly name: string;
  readonly unit: string;
  /** One value per round. */
  readonly values: readonly number[];
  /** The values of the same rounds, in the same order. */
  readonly yardsticks?: readonly number[];
  readonly goal?: Goal | undefined;
}

export type Goal =
  | { readonly ratioAtLeast: number }
  | { readonly ratioAtMost: number }
  | { readonly valueBelow: number };

/** The minimum ratio to an earlier version. Less than 1, because two runs of the same code differ by a few per cent. */
export const noSlower = { ratioAtLeast: 0.95 } as const;
/** The same for rows in which less is better. */
export const noMore = { ratioAtMost: 1.05 } as const;

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  const [low, high] = [sorted[Math.ceil(middle) - 1], sorted[Math.floor(middle)]];
  if (low === undefined || high === undefined) throw new Error('there is no median of nothing');
  return (low + high) / 2;
}

/** The ratio is taken in each round, because a slowdown of the machine affects both sides of the same round. */
export function toRow({ name, unit, values, yardsticks, goal }: Measured): Row {
  const value = median(values);
  const ratio =
    yardsticks === undefined ? null : median(values.map((v, round) => v / (yardsticks[round] ?? Number.NaN)));
  const about = {
    name,
    value: rounded(value),
    unit,
    yardstick: yardsticks === undefined ? null : rounded(median(yardsticks)),
  };
  const rest = { ...about, ratio: ratio === null ? null : rounded(ratio) };
  if (goal === undefined) return { ...rest, goal: null, holds: null };
  if ('valueBelow' in goal) return { ...rest, goal: `value < ${goal.valueBelow}`, holds: value < goal.valueBelow };
  if ('ratioAtMost' in goal)
    return { ...rest, goal: `ratio <= ${goal.ratioAtMost}`, holds: ratio !== null && ratio <= goal.ratioAtMost };
  return { ...rest, goal: `ratio >= ${goal.ratioAtLeast}`, holds: ratio !== null && ratio >= goal.ratioAtLeast };
}

/** Four digits are the precision of such a measurement. */
const rounded = (value: number): number => Number(value.toPrecision(4));

const headings = ['', 'value', 'unit', 'yardstick', 'ratio', 'goal', ''] as const;

function table(rows: readonly Row[]): string {
  const shown = (value: string | number | null): string => (value === null ? '' : String(value));
  const cells = rows.map((row) => [
    row.name,
    shown(row.value),
    row.unit,
    shown(row.yardstick),
    shown(row.ratio),
    shown(row.goal),
    row.holds === null ? '' : row.holds ? 'holds' : 'MISSED',
  ]);
  const widths = headings.map((heading, column) =>
    Math.max(...[heading, ...cells.map((c) => c[column] ?? '')].map((t) => t.length)),
  );
  const numbers = new Set([1, 3, 4]);
  return [[...headings], ...cells]
    .map((line) =>
      line
        .map((cell, column) =>
          numbers.has(column) ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
        )
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** A table for people. The last line is JSON for programs. */
export function report(bench: string, rows: readonly Row[]): string {
  return `\n${table(rows)}\n\n${JSON.stringify({ bench, rows })}\n`;
}
