import { chmodSync } from 'node:fs';
import { mkdtempDisposable, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { type Cache, cacheKey, openCache } from './mutants/cache.ts';
import { type Graph, readGraph, relatedTests } from './mutants/graph.ts';
import { type Budget, judge, type TestBench, type Verdict } from './mutants/judge.ts';
import { chooseMutants, type Mutant, mutableFiles, readMutants } from './mutants/mutant.ts';
import { type Judged, reportLines, verdictLine } from './mutants/report.ts';
import { runTests } from './mutants/run.ts';
import { createScratch, type Scratch } from './mutants/scratch.ts';

const usage = `Changes the sources in small ways, one change (a mutant) at a time, and counts how many of them the tests notice.

npm run mutants -- [OPTION…]
  --count N        how many mutants (100)
  --seed N         choose others (1)
  --list FILE      write the chosen mutants to FILE, and run nothing
  --from FILE      run the mutants of FILE instead of choosing
  --checkout DIR   the checkout to test (this one); it is copied, not changed
  --seconds N      how long the tests of one mutant may take (45)
  --at-least N     how many of the nearest test files run whatever time they take (3)
  --limit N        a run of tests that takes longer hangs (120)
  --workers N      mutants at once, 1 or 2 (1)
  --cache FILE     keep results, and reuse them for mutants whose sources and tests are the same
  --json FILE      write all results to FILE`;

interface Settings {
  readonly checkout: string;
  readonly budget: Budget;
  readonly limitSeconds: number;
  readonly workers: number;
}

interface Session {
  readonly settings: Settings;
  readonly graph: Graph;
  readonly cache: Cache;
  readonly unreliable: Map<string, string>;
  readonly reliable: Set<string>;
  readonly signal: AbortSignal;
}

function optionsIn(args: readonly string[]) {
  const string = { type: 'string' } as const;
  const { values } = parseArgs({
    args: [...args],
    options: {
      help: { type: 'boolean' },
      count: string,
      seed: string,
      list: string,
      from: string,
      checkout: string,
      seconds: string,
      'at-least': string,
      limit: string,
      workers: string,
      cache: string,
      json: string,
    },
  });
  return values;
}

function whole(name: string, text: string | undefined, otherwise: number, most = Number.MAX_SAFE_INTEGER): number {
  const value = text === undefined ? otherwise : Number(text);
  if (Number.isSafeInteger(value) && value >= 1 && value <= most) return value;
  throw new Error(`--${name} ${text}: it takes a whole number from 1${most < 10 ? ` to ${most}` : ''}`);
}

async function main(args: readonly string[], signal: AbortSignal): Promise<number> {
  const options = optionsIn(args);
  if (options.help === true) {
    console.log(usage);
    return 0;
  }
  const settings: Settings = {
    checkout: resolve(options.checkout ?? dirname(import.meta.dirname)),
    budget: {
      seconds: whole('seconds', options.seconds, 45),
      atLeast: whole('at-least', options['at-least'], 3),
    },
    limitSeconds: whole('limit', options.limit, 120),
    workers: whole('workers', options.workers, 1, 2),
  };
  const count = whole('count', options.count, 100);
  const seed = whole('seed', options.seed, 1);
  const mutants =
    options.from === undefined
      ? chooseMutants(await mutableFiles(settings.checkout), seed, count)
      : await readMutants(options.from);
  if (options.list !== undefined) {
    await writeFile(options.list, `${JSON.stringify(mutants, undefined, 2)}\n`);
    console.log(`${mutants.length} mutants in ${options.list}`);
    return 0;
  }
  const cache = await openCache(options.cache);
  const graph = await readGraph(settings.checkout);
  const session = {
    settings,
    graph,
    cache,
    unreliable: new Map<string, string>(),
    reliable: new Set<string>(),
    signal,
  };
  const judged = await judgeAll(mutants, session);
  const { unreliable } = session;
  if (options.json !== undefined) {
    await writeFile(
      options.json,
      `${JSON.stringify({ seed, ...settings, judged, unreliable: Object.fromEntries(unreliable) }, undefined, 2)}\n`,
    );
  }
  console.log(`\n${reportLines(judged, unreliable).join('\n')}`);
  return judged.some(({ verdict: { status } }) => status === 'gone' || status === 'unjudged') ? 1 : 0;
}

async function judgeAll(mutants: readonly Mutant[], session: Session): Promise<readonly Judged[]> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'sm-'));
  // Tests that run as an ordinary user must be able to read the sources.
  chmodSync(folder.path, 0o755);
  const judged = new Map<number, Judged>();
  const queue = mutants.entries();
  const work = async (name: string): Promise<void> => {
    const scratch = await createScratch(session.settings.checkout, folder.path, name);
    for (const [index, mutant] of queue) {
      const verdict = await verdictOn(mutant, scratch, session);
      judged.set(index, { mutant, verdict });
      console.log(`${judged.size}/${mutants.length} ${verdictLine({ mutant, verdict })}`);
    }
  };
  const names = Array.from({ length: session.settings.workers }, (_, n) => String(n + 1));
  const outcomes = await Promise.allSettled(names.map(work));
  for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason;
  return [...judged].toSorted(([a], [b]) => a - b).map(([, each]) => each);
}

async function verdictOn(mutant: Mutant, scratch: Scratch, session: Session): Promise<Verdict> {
  const { settings, graph, cache, unreliable, reliable, signal } = session;
  const tests = relatedTests(graph, mutant.file);
  const key = cacheKey(graph, mutant, tests, settings.budget);
  const known = cache.verdicts.get(key);
  if (known !== undefined) return known;
  const atOnce = Math.max(1, Math.floor(Math.min(4, availableParallelism()) / settings.workers));
  const bench: TestBench = {
    tests,
    budget: settings.budget,
    durations: cache.durations,
    unreliable,
    reliable,
    write: async (text) => await scratch.write(mutant.file, text),
    run: async (files) => await runTests(scratch, files, { limitSeconds: settings.limitSeconds, atOnce, signal }),
    clean: async () => await scratch.clean(),
  };
  const verdict = await judge(mutant, graph.files.get(mutant.file)?.text, bench);
  // A test that failed without the mutant may pass next time, so the verdict is not cached.
  if (!tests.some((file) => unreliable.has(file))) cache.verdicts.set(key, verdict);
  await cache.save();
  return verdict;
}

const interrupt = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => interrupt.abort(new Error(name)));
try {
  process.exitCode = await main(process.argv.slice(2), interrupt.signal);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = interrupt.signal.aborted ? 130 : 2;
}
