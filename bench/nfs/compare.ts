import type { Driver } from './driver.ts';
import type { Answer, Task } from './operations.ts';

/** The values of one task, one for each round. */
export interface Comparison {
  readonly task: Task;
  readonly ours: readonly Answer[];
  readonly yardstick: readonly Answer[];
}

export interface Sides {
  readonly ours: Driver;
  readonly yardstick: Driver;
}

/** Long enough that start and stop are negligible, and short enough that a disturbance affects both sides. */
const usualSampleMs = 150;
const warmUpMs = 400;

/** Runs each task on both sides in each round, one directly after the other. */
export async function compare(
  sides: Sides,
  tasks: readonly Task[],
  rounds: number,
  note: (text: string) => void,
  sampleMs = usualSampleMs,
): Promise<readonly Comparison[]> {
  const all = tasks.map((task) => ({ task, ours: [] as Answer[], yardstick: [] as Answer[] }));
  for (const { task } of all) {
    // Warms up: the first calls find cold caches, and the code is not compiled yet.
    await sides.yardstick.measure(task, warmUpMs / 4);
    await sides.ours.measure(task, warmUpMs);
  }
  for (let round = 1; round <= rounds; round++) {
    // The sides take turns at being the first.
    const order = round % 2 === 0 ? (['ours', 'yardstick'] as const) : (['yardstick', 'ours'] as const);
    for (const each of all) for (const side of order) each[side].push(await sides[side].measure(each.task, sampleMs));
    note(`round ${round}/${rounds}: ${all.map(ratioOf).join(' ')}`);
  }
  return all;
}

const ratioOf = ({ ours, yardstick }: Comparison): string =>
  ((ours.at(-1)?.perSecond ?? 0) / (yardstick.at(-1)?.perSecond ?? Number.NaN)).toFixed(2);
