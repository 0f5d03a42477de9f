import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { mkdir, mkdtempDisposable, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { toolPath } from '#testbed/lacks.ts';

export const drivers = ['file', 'local', 'directories'] as const;
export type Driver = (typeof drivers)[number];

export interface Selection {
  readonly driver: Driver;
  /** A regular expression for the full names of tests. Undefined: every test that the driver's definition selects. */
  readonly focus?: string;
}

/** The result of one of Kubernetes' own tests. */
export interface Spec {
  readonly name: string;
  readonly state: 'passed' | 'failed' | 'skipped';
  readonly seconds: number;
  /** Why the test was skipped, or how it failed. */
  readonly why: string;
}

export interface SuiteOptions extends Selection {
  readonly kubeconfig: string;
  /** The folder for the log and the report. */
  readonly folder: string;
  /** How many tests run in parallel. They spend most of their time waiting. */
  readonly parallel: number;
  /** The limit for all tests together. */
  readonly minutes: number;
  readonly signal: AbortSignal;
}

/** Excludes slow tests and tests that restart kubelets. Tests of features that a driver lacks skip themselves. */
const alwaysExcluded = '!Slow && !Disruptive';

/** Runs the tests of External.Storage that the driver's definition selects. */
export async function runSuite(options: SuiteOptions): Promise<readonly Spec[]> {
  const { driver, focus, kubeconfig, folder, parallel, minutes, signal } = options;
  await mkdir(folder, { recursive: true });
  // The suite does not remove its temporary folders.
  await using temporary = await mkdtempDisposable(join(tmpdir(), 'stowage-suite-'));
  const report = 'report.json';
  // A report that another run left.
  await rm(join(folder, report), { force: true });
  const words = [
    'run',
    '-v',
    '--no-color',
    '--silence-skips',
    `--procs=${parallel}`,
    `--timeout=${minutes}m`,
    `--label-filter=${alwaysExcluded}`,
    `--focus=External.Storage.*(${focus ?? ''})`,
    `--output-dir=${folder}`,
    `--json-report=${report}`,
    toolPath('k8s-e2e'),
    '--',
    `--kubeconfig=${kubeconfig}`,
    '--provider=skeleton',
    `--storage.testdriver=${definition(driver)}`,
  ];
  const log = createWriteStream(join(folder, 'log'));
  const child = spawn(toolPath('ginkgo'), words, {
    env: { ...process.env, TMPDIR: temporary.path },
    stdio: ['ignore', 'pipe', 'pipe'],
    signal,
  });
  for (const stream of [child.stdout, child.stderr]) stream.pipe(log, { end: false });
  const [code] = (await once(child, 'close')) as [number | null];
  log.end();
  return withEarlyEnd(specsOf(await readFile(join(folder, report), 'utf8')), code);
}

/** When the time is up, the report shows the remaining tests as if they were not selected. */
export function withEarlyEnd(specs: readonly Spec[], code: number | null): readonly Spec[] {
  if (code === 0 || specs.some(({ state }) => state === 'failed')) return specs;
  return [...specs, { name: 'the whole run', state: 'failed', seconds: 0, why: `it ended with ${code ?? 'a signal'}` }];
}

const definition = (driver: Driver): string => join(import.meta.dirname, `${driver}.yaml`);

/** The format of Ginkgo's report. */
interface ReportedSpec {
  readonly SpecReports: readonly {
    readonly ContainerHierarchyTexts: readonly string[] | null;
    readonly LeafNodeType: string;
    readonly LeafNodeText: string;
    readonly State: string;
    readonly RunTime: number;
    readonly Failure?: { readonly Message?: string; readonly ForwardedPanic?: string };
  }[];
}

/** The tests of a report that the selection includes. A failure outside a test counts as a failure, too. */
export function specsOf(report: string): readonly Spec[] {
  const suites: readonly ReportedSpec[] = JSON.parse(report);
  return suites
    .flatMap(({ SpecReports }) => SpecReports)
    .flatMap((report): readonly Spec[] => {
      const { State, Failure } = report;
      const why = [Failure?.Message, Failure?.ForwardedPanic].filter(Boolean).join('\n');
      if (State === 'passed' && report.LeafNodeType !== 'It') return [];
      // A test that the selection excludes has no skip reason.
      if (State === 'pending' || (State === 'skipped' && why === '')) return [];
      const state = State === 'passed' || State === 'skipped' ? State : 'failed';
      const name = [...(report.ContainerHierarchyTexts ?? []), report.LeafNodeText].filter(Boolean).join(' ');
      return [{ name: name || report.LeafNodeType, state, seconds: report.RunTime / 1e9, why }];
    });
}

/** Lines for people: the counts, the failures, and why tests were skipped. */
export function summaryOf(driver: Driver, specs: readonly Spec[]): readonly string[] {
  const inState = (state: Spec['state']): readonly Spec[] => specs.filter((spec) => spec.state === state);
  const [passed, failed, skipped] = [inState('passed'), inState('failed'), inState('skipped')];
  const reasons = Object.groupBy(skipped, ({ why }) => why.trim());
  const reasonCounts = Object.entries(reasons).map(([why, skippedSpecs = []]) => ({ why, count: skippedSpecs.length }));
  return [
    `${driver}: ${passed.length} passed, ${failed.length} failed, ${skipped.length} skipped`,
    ...failed.flatMap(({ name, seconds, why }) => [
      `✗ ${name} (${seconds.toFixed(0)} s)`,
      ...why.split('\n').map((line) => `    ${line}`),
    ]),
    ...reasonCounts.sort((a, b) => b.count - a.count).map(({ why, count }) => `· ${count} skipped: ${why}`),
  ];
}
