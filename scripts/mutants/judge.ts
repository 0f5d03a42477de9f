import { applyMutant, type Mutant } from './mutant.ts';
import type { Run } from './run.ts';

/** The result of the tests for one mutant. */
export interface Verdict {
  readonly status: 'killed' | 'timeout' | 'survived' | 'unjudged' | 'gone';
  /** The test file that failed, or all files that hung. */
  readonly by?: string;
  readonly test?: string;
  /** The number of test files that passed. */
  readonly passed: number;
  readonly related: number;
  readonly seconds: number;
  /** Mounts and loop devices that the tests left behind while the mutant was in the sources. */
  readonly left: readonly string[];
}

/** The limits for the tests of one mutant. */
export interface Budget {
  readonly seconds: number;
  /** This many of the nearest test files run, whatever time they take. */
  readonly atLeast: number;
}

export interface TestBench {
  readonly tests: readonly string[];
  readonly budget: Budget;
  /** The duration of each test file in seconds. Measured durations are added. */
  readonly durations: Map<string, number>;
  /** Test files that did not pass without a mutant, with the reason. They prove nothing. */
  readonly unreliable: Map<string, string>;
  /** Test files that passed without a mutant. */
  readonly reliable: Set<string>;
  write(text: string): Promise<void>;
  run(files: readonly string[]): Promise<Run>;
  /** Removes what the tests left behind, and returns a line for each item. */
  clean(): Promise<readonly string[]>;
}

const firstBatch = 3;
const laterBatch = 20;
/** The assumed duration of a test file that never ran. */
const unknownSeconds = 4;

/** Runs the tests, nearest first, until one fails because of the mutant or the budget is used up. */
export async function judge(mutant: Mutant, original: string | undefined, bench: TestBench): Promise<Verdict> {
  const related = bench.tests.length;
  const changed = original === undefined ? undefined : applyMutant(original, mutant);
  if (original === undefined || changed === undefined) {
    return { status: 'gone', passed: 0, related, seconds: 0, left: [] };
  }
  const passed = new Set<string>();
  const left: string[] = [];
  let seconds = 0;
  for (;;) {
    const rest = bench.tests.filter((file) => !passed.has(file) && !bench.unreliable.has(file));
    const size = seconds === 0 ? firstBatch : laterBatch;
    const remaining = { seconds: bench.budget.seconds - seconds, atLeast: bench.budget.atLeast - passed.size };
    const batch = nextBatch(rest, bench.durations, remaining, size);
    if (batch.length === 0) {
      // If no related test passes without a mutant, the tests prove nothing.
      const status = related > 0 && passed.size === 0 ? 'unjudged' : 'survived';
      return { status, passed: passed.size, related, seconds, left };
    }
    const run = await runMutated(bench, batch, changed, original);
    left.push(...run.leftMounts, ...(await bench.clean()));
    seconds += run.seconds;
    for (const event of run.events) {
      if (event.kind !== 'passed') continue;
      passed.add(event.file);
      bench.durations.set(event.file, event.seconds);
    }
    const suspect = suspectIn(run, batch, passed);
    if (suspect === undefined) {
      for (const file of batch) passed.add(file);
    } else if (await isReliable(suspect.files, bench)) {
      const { status, files, test } = suspect;
      return { status, by: files.join(' '), test, passed: passed.size, related, seconds, left };
    }
  }
}

async function runMutated(bench: TestBench, files: readonly string[], changed: string, original: string): Promise<Run> {
  await bench.write(changed);
  try {
    return await bench.run(files);
  } finally {
    await bench.write(original);
  }
}

/** The first `size` files that fit into the time, and as many as the budget demands. */
export function nextBatch(
  files: readonly string[],
  durations: ReadonlyMap<string, number>,
  { seconds, atLeast }: Budget,
  size: number,
): readonly string[] {
  const batch: string[] = [];
  let sum = 0;
  for (const file of files) {
    const needed = durations.get(file) ?? unknownSeconds;
    if (batch.length === size || (sum + needed > seconds && batch.length >= atLeast)) continue;
    batch.push(file);
    sum += needed;
  }
  return batch;
}

interface Suspect {
  readonly status: 'killed' | 'timeout';
  readonly files: readonly string[];
  readonly test: string;
}

/** The files that failed, hung or left mounts behind, if any. */
function suspectIn(run: Run, batch: readonly string[], passed: ReadonlySet<string>): Suspect | undefined {
  const unfinished = batch.filter((file) => !passed.has(file));
  const files = unfinished.length > 0 ? unfinished : batch;
  if (run.status === 'timeout') return { status: 'timeout', files, test: '' };
  if (run.status === 'failed') {
    const failure = run.events.find((event) => event.kind === 'failed');
    const test = failure?.test ?? 'the run ended early';
    return { status: 'killed', files: failure === undefined || failure.file === '' ? files : [failure.file], test };
  }
  // As in `npm test`, a mount that is left after all tests passed is a failure.
  return run.leftMounts.length > 0 ? { status: 'killed', files: batch, test: 'mounts were left' } : undefined;
}

/** Whether the files pass without the mutant. Files that do not pass are not run again. */
async function isReliable(files: readonly string[], bench: TestBench): Promise<boolean> {
  const unknown = files.filter((file) => !bench.reliable.has(file));
  if (unknown.length === 0) return true;
  const run = await bench.run(unknown);
  await bench.clean();
  const why = run.status === 'passed' && run.leftMounts.length > 0 ? 'left mounts' : run.status;
  for (const file of unknown) {
    if (why === 'passed') bench.reliable.add(file);
    else bench.unreliable.set(file, why);
  }
  return why === 'passed';
}
