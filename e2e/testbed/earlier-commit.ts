import { chmod, mkdtempDisposable, readFile, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repository } from './component.ts';
import { runner } from './run.ts';

/** The sources of an earlier commit in a temporary folder. */
export interface EarlierCommit extends AsyncDisposable {
  readonly path: string;
}

/** Checks out the commit, and installs the packages of its lockfile. */
export async function checkOut(commit: string, signal: AbortSignal): Promise<EarlierCommit> {
  const run = runner(signal);
  await using stack = new AsyncDisposableStack();
  const folder = stack.use(await mkdtempDisposable(join(tmpdir(), 'stowage-earlier-'))).path;
  // The data path runs as another user, which must be able to read its program.
  await chmod(folder, 0o755);
  const path = join(folder, 'tree');
  await run('git', ['clone', '--quiet', '--shared', '--no-checkout', repository, path]);
  await run('git', ['-C', path, 'checkout', '--quiet', '--detach', commit]);
  const [currentLock, earlierLock] = await Promise.all(
    [repository, path].map((tree) => readFile(join(tree, 'package-lock.json'), 'utf8')),
  );
  if (currentLock === earlierLock) await symlink(join(repository, 'node_modules'), join(path, 'node_modules'));
  else await run('npm', ['ci', '--ignore-scripts', '--prefix', path]);
  const resources = stack.move();
  return { path, [Symbol.asyncDispose]: () => resources.disposeAsync() };
}
