import type { Skip } from '#testbed/lacks.ts';

/** The reporter's results for `npm test`. */
export interface Outcome {
  readonly passed: number;
  /** Failed tests, and failures outside of tests: a file that did not load, a hook, an unhandled error. */
  readonly failed: number;
  /** The number of skipped tests of each file, by its path from the repository's root. */
  readonly skipped: Readonly<Record<string, number>>;
  /** The duration of each file, from the start of its process to the end of its last test. */
  readonly milliseconds: Readonly<Record<string, number>>;
}

const count = (n: number, noun: string): string => `${n} ${noun}${n === 1 ? '' : 's'}`;
const sum = (numbers: Iterable<number>): number => [...numbers].reduce((a, b) => a + b, 0);

/** The facts that decide whether a run passed. */
interface Result {
  readonly outcome: Outcome;
  /** Mounts that the tests left behind, one line each. */
  readonly left: readonly string[];
  readonly require: string | undefined;
}

const slowestCount = 15;

/** The last lines of `npm test`: the slowest files, skipped tests with reasons and remedies, and the counts. */
export function summaryLines(result: Result, skips: readonly Skip[]): readonly string[] {
  const { passed, failed, skipped } = result.outcome;
  const total = sum(Object.values(skipped));
  const lines: string[] = [...slowestLines(result.outcome)];
  if (total > 0) lines.push('Skipped:', ...missingLines(skipped, skips), ...otherLines(skipped, skips), '');
  if (passed + failed === 0) lines.push('No test ran: that is a failure.', '');
  if (total > 0 && result.require === 'all') lines.push('STOWAGE_REQUIRE=all: a skipped test is a failure.', '');
  if (result.left.length > 0) {
    lines.push('Still mounted after the tests, which is a failure:', ...result.left.map((line) => `  ${line}`), '');
  }
  return [...lines, `${passed} passed, ${failed} failed, ${total} skipped`];
}

export function exitStatus({ outcome, left, require }: Result): number {
  if (outcome.failed > 0 || outcome.passed === 0 || left.length > 0) return 1;
  return require === 'all' && sum(Object.values(outcome.skipped)) > 0 ? 1 : 0;
}

function slowestLines({ milliseconds }: Outcome): readonly string[] {
  const slowest = Object.entries(milliseconds).toSorted(([, a], [, b]) => b - a);
  if (slowest.length < 2) return [];
  const lines = slowest.slice(0, slowestCount).map(([file, ms]) => `${(ms / 1000).toFixed(1).padStart(8)} s  ${file}`);
  return [`Slowest files, of ${slowest.length}:`, ...lines, ''];
}

function missingLines(skipped: Outcome['skipped'], skips: readonly Skip[]): readonly string[] {
  const byComponent = Map.groupBy(skips, (skip) => skip.component);
  return [...byComponent].flatMap(([component, found]) => {
    const files = [...new Set(found.map((skip) => skip.file))].filter((file) => (skipped[file] ?? 0) > 0);
    const [first] = found;
    if (first === undefined || files.length === 0) return [];
    const tests = files.map((file) => `${file} (${skipped[file]})`).join(', ');
    return [`  ${component}: ${first.why}`, `    tests:   ${tests}`, `    provide: ${first.command}`];
  });
}

/** Tests that skip themselves for another reason than a missing component. */
function otherLines(skipped: Outcome['skipped'], skips: readonly Skip[]): readonly string[] {
  const explained = new Set(skips.map((skip) => skip.file));
  return Object.entries(skipped)
    .filter(([file]) => !explained.has(file))
    .map(([file, n]) => `  ${file}: ${count(n, 'test')}, without a stated reason`);
}
