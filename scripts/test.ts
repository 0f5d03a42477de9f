import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempDisposable, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Skip } from '#testbed/needs.ts';
import { exitStatus, type Outcome, summaryLines } from './summary.ts';

const repository = dirname(import.meta.dirname);

// Node reads the configuration as it is; otherwise it would be bundled into a file in a checkout that may be read-only.
const loader = ['--configLoader', 'native'];

/** The file, or nothing where it was never written. */
async function textOf(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch {
    return '';
  }
}

async function main(args: readonly string[]): Promise<number> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-test-run-'));
  const skipsFile = join(folder.path, 'skips');
  const outcomeFile = join(folder.path, 'outcome');
  const env = { ...process.env, STOWAGE_SKIPS: skipsFile, STOWAGE_OUTCOME: outcomeFile };
  const vitest = join(repository, 'node_modules', 'vitest', 'vitest.mjs');
  const child = spawn(process.execPath, [vitest, 'run', ...loader, ...args], {
    cwd: repository,
    env,
    stdio: 'inherit',
  });
  // Ctrl-C reaches vitest too, being in the same group; this process stays to print what is known.
  process.on('SIGINT', () => undefined);
  process.on('SIGTERM', () => child.kill('SIGTERM'));
  const [code] = (await once(child, 'exit')) as [number | null];

  const skips = (await textOf(skipsFile)).split('\n').filter((line) => line !== '');
  const written = await textOf(outcomeFile);
  const outcome: Outcome = written === '' ? { passed: 0, failed: 1, skipped: {} } : JSON.parse(written);
  const require = process.env['STOWAGE_REQUIRE'];
  if (written === '') console.log('The test run ended before its figures were known.');
  const known = skips.map((line): Skip => JSON.parse(line));
  console.log(`\n${summaryLines(outcome, known, require).join('\n')}`);
  return exitStatus(outcome, require) || (code ?? 1);
}

process.exitCode = await main(process.argv.slice(2));
