import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, mkdtempDisposable, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Skip } from '#testbed/lacks.ts';
import { ownMounts } from '#testbed/mount-namespace.ts';
import { createMountCheck, type MountCheck } from './mount-check.ts';
import { exitStatus, type Outcome, summaryLines } from './summary.ts';

const repository = dirname(import.meta.dirname);

// Node loads the configuration directly. Vitest would bundle it into a file in the checkout, which may be read-only.
const loader = ['--configLoader', 'native'];

/**
 * Tests start many programs from their sources. With this cache, Node compiles each source once. The folder stays after
 * the run, because programs that exit late still write to it. Some programs run as other users, and Node creates a
 * subfolder for each user.
 */
async function compileCache(): Promise<Readonly<Record<string, string>>> {
  const folder = join(repository, 'node_modules', '.cache', 'compiled');
  try {
    await mkdir(folder, { recursive: true });
    if (process.getuid?.() === 0) await chmod(folder, 0o1777);
  } catch {
    return {}; // The checkout may be read-only. The cache only saves time.
  }
  return { NODE_COMPILE_CACHE: folder };
}

/** The file's contents, or an empty text if the file does not exist. */
async function textOf(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch {
    return '';
  }
}

async function main(args: readonly string[], leftMounts: MountCheck): Promise<number> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-test-run-'));
  const skipsFile = join(folder.path, 'skips');
  const outcomeFile = join(folder.path, 'outcome');
  const env = {
    ...process.env,
    STOWAGE_SKIPS: skipsFile,
    STOWAGE_OUTCOME: outcomeFile,
    ...(await compileCache()),
  };
  const vitest = join(repository, 'node_modules', 'vitest', 'vitest.mjs');
  const child = spawn(process.execPath, [vitest, 'run', ...loader, ...args], {
    cwd: repository,
    env,
    stdio: 'inherit',
  });
  // vitest receives Ctrl-C as well, because it is in the same process group. This process keeps running to print the
  // results.
  process.on('SIGINT', () => undefined);
  process.on('SIGTERM', () => child.kill('SIGTERM'));
  const [code] = (await once(child, 'exit')) as [number | null];

  const skips = (await textOf(skipsFile)).split('\n').filter((line) => line !== '');
  const written = await textOf(outcomeFile);
  const outcome: Outcome =
    written === '' ? { passed: 0, failed: 1, skipped: {}, milliseconds: {} } : JSON.parse(written);
  const require = process.env['STOWAGE_REQUIRE'];
  if (written === '') console.log('The test run ended before its figures were known.');
  const known = skips.map((line): Skip => JSON.parse(line));
  const result = { outcome, left: await leftMounts(), require };
  console.log(`\n${summaryLines(result, known).join('\n')}`);
  return exitStatus(result) || (code ?? 1);
}

// Tests run in parallel, and some create mount namespaces, which must see the unmounts of other tests. That needs
// shared mounts. If possible, this process replaces itself by one in a mount namespace in which all mounts are shared.
const inside = '--in-own-mounts';
const args = process.argv.slice(2);
const enter = args[0] === inside ? undefined : ownMounts();
if (enter !== undefined) {
  const self = [process.execPath, ...process.execArgv, import.meta.filename];
  process.execve?.(enter[0], [...enter, ...self, inside, ...args]);
}
process.exitCode =
  args[0] === inside ? await main(args.slice(1), await createMountCheck()) : await main(args, async () => []);
