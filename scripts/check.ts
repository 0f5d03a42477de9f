import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { dialectFaults, textsIn } from './dialect.ts';
import { repositoryFaults } from './repository-rules.ts';

const repository = dirname(import.meta.dirname);
const deadline = 10 * 60_000;

interface Finding {
  readonly ok: boolean;
  readonly output: string;
}

/** Each program runs as an editor or a user would run it, so that a failure can be reproduced with the same command. */
const programs: readonly (readonly [what: string, program: string, ...args: string[]])[] = [
  ['types', 'tsc', '--noEmit', '-p', '.'],
  ['format and lint', 'biome', 'check', '--error-on-warnings', '--max-diagnostics=100'],
  ['promises', 'oxlint', '--type-aware', '--deny-warnings'],
  ['dead code', 'knip', '--no-progress'],
  ['who imports whom', 'vitest', 'run', '--reporter=dot', 'src/testing/architecture.test.ts'],
  ['documentation', 'node', '--disable-warning=ExperimentalWarning', 'scripts/docs.ts', '--check'],
];

async function runProgram(program: string, args: readonly string[]): Promise<Finding> {
  const file = program === 'node' ? process.execPath : join(repository, 'node_modules', '.bin', program);
  const child = spawn(file, args, {
    cwd: repository,
    // The scripts of the programs begin with `env node`, which must find the Node that runs this script.
    env: { ...process.env, PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}` },
    signal: AbortSignal.timeout(deadline),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  const { promise, resolve } = Promise.withResolvers<Finding>();
  child.on('error', (error) => resolve({ ok: false, output: `${program}: ${error.message}` }));
  child.on('close', (code) => resolve({ ok: code === 0, output }));
  return await promise;
}

async function step(what: string, command: string, work: () => Promise<Finding> | Finding): Promise<boolean> {
  const since = performance.now();
  const { ok, output } = await work();
  const seconds = ((performance.now() - since) / 1000).toFixed(1);
  console.log(`${ok ? '✓' : '✗'} ${what.padEnd(18)} ${seconds.padStart(5)} s   ${command}`);
  if (!ok) console.log(`${output.trimEnd()}\n`);
  return ok;
}

async function main(): Promise<number> {
  const results: boolean[] = [];
  // One after the other, because each program uses all cores, and so that the durations mean something.
  for (const [what, program, ...args] of programs) {
    results.push(await step(what, [program, ...args].join(' '), () => runProgram(program, args)));
  }
  const rules = await step('repository', 'lockfile, file sizes, paths', () => {
    const faults = repositoryFaults(repository);
    return { ok: faults.length === 0, output: faults.join('\n') };
  });
  const dialect = await step('plain English', 'phrases that may not come back: scripts/dialect.ts', () => {
    const faults = dialectFaults(textsIn(repository));
    return { ok: faults.length === 0, output: faults.join('\n') };
  });
  const all = [...results, rules, dialect];
  const failed = all.filter((ok) => !ok).length;
  console.log(failed === 0 ? 'all checks passed' : `${failed} of ${all.length} checks failed`);
  return failed === 0 ? 0 : 1;
}

process.exitCode = await main();
