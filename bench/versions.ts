import { repository } from '#testbed/component.ts';
import { checkOut } from '#testbed/earlier-commit.ts';
import { command } from './datapath/command.ts';
import { type Goal, noMore, noSlower, type Row, toRow } from './report.ts';

const runDeadlineMs = 3_600_000;

export interface VersionRuns {
  readonly commit: string;
  /** How often each version runs the benchmark. */
  readonly runs: number;
  /** More arguments for each run. */
  readonly args: readonly string[];
  readonly signal: AbortSignal;
  readonly note: (text: string) => void;
}

/**
 * Runs a whole benchmark of this version and of an earlier commit in turn, each with its own sources, and compares their rows. A row that is
 * already relative to other software in the same run is compared by that ratio, which the speed of the machine affects less.
 */
export async function compareVersions(name: string, how: VersionRuns): Promise<readonly Row[]> {
  await using earlier = await checkOut(how.commit, how.signal);
  const results: Record<'ours' | 'earlier', (readonly Row[])[]> = { ours: [], earlier: [] };
  const trees = { ours: repository, earlier: earlier.path } as const;
  for (let run = 1; run <= how.runs; run++)
    for (const side of run % 2 === 1 ? (['ours', 'earlier'] as const) : (['earlier', 'ours'] as const)) {
      how.note(`run ${run}/${how.runs}: ${side}`);
      const main = [
        process.execPath,
        '--disable-warning=ExperimentalWarning',
        'bench/main.ts',
        name,
        ...how.args,
      ] as const;
      const { stdout } = await command(main, how.signal, { cwd: trees[side], timeoutMs: runDeadlineMs });
      results[side].push(JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '').rows);
    }
  return compareRows(results.ours, results.earlier);
}

/** Rows correspond by position, because a name may have changed between the versions. */
export function compareRows(ours: readonly (readonly Row[])[], earlier: readonly (readonly Row[])[]): readonly Row[] {
  const counts = new Set([...ours, ...earlier].map((rows) => rows.length));
  if (counts.size !== 1) throw new Error(`the runs have different numbers of rows: ${[...counts].join(', ')}`);
  return (ours[0] ?? []).map((first, at) => {
    const valuesOf = (runs: readonly (readonly Row[])[]): readonly number[] =>
      runs.map((rows) => rows[at]).map((row) => (first.ratio === null ? row?.value : row?.ratio) ?? Number.NaN);
    const yardsticks = valuesOf(earlier);
    const name = first.ratio === null ? first.name : `${first.name} (ratio)`;
    const values = valuesOf(ours);
    return toRow({
      name,
      unit: first.unit,
      values,
      yardsticks,
      goal: yardsticks.includes(0) ? undefined : goalOf(first),
    });
  });
}

const goalOf = ({ unit, goal }: Row): Goal =>
  unit.endsWith('/s') || goal?.startsWith('ratio >=') === true ? noSlower : noMore;
