import type { Driver } from './driver.ts';
import type { Answer, Task } from './operations.ts';

/** What was measured of one task, round by round. */
export interface Comparison {
  readonly task: Task;
  readonly ours: readonly Answer[];
  readonly yardstick: readonly Answer[];
}

export interface Sides {
  readonly ours: Driver;
  readonly yardstick: Driver;
}

/** Long enough that starting and stopping do not count, short enough that a disturbance meets both sides. */
const usualSampleMs = 150;
const warmUpMs = 400;

/** Round after round, in which each task is done by one side and at once by the other. */
export async function compare(
  sides: Sides,
  tasks: readonly Task[],
  rounds: number,
  note: (text: string) => void,
  sampleMs = usualSampleMs,
): Promise<readonly Comparison[]> {
  const all = tasks.map((task) => ({ task, ours: [] as Answer[], yardstick: [] as Answer[] }));
  for (const { task } of all) {
    // The first calls find cold caches, and ours code that is not compiled yet.
    await sides.yardstick.measure(task, warmUpMs / 4);
    await sides.ours.measure(task, warmUpMs);
  }
  for (let round = 1; round <= rounds; round++) {
    // Neither side always comes after the other.
    const order = round % 2 === 0 ? (['ours', 'yardstick'] as const) : (['yardstick', 'ours'] as const);
    for (const each of all) for (const side of order) each[side].push(await sides[side].measure(each.task, sampleMs));
    note(`round ${round}/${rounds}: ${all.map(ratioOf).join(' ')}`);
  }
  return all;
}

const ratioOf = ({ ours, yardstick }: Comparison): string =>
  ((ours.at(-1)?.perSecond ?? 0) / (yardstick.at(-1)?.perSecond ?? Number.NaN)).toFixed(2);
