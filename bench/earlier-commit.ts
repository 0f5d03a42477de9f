import { readFile, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { repository } from '#testbed/component.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { command } from './datapath/command.ts';

/** The minimum ratio to the earlier commit. Less than 1, because two runs of the same code differ by a few per cent. */
export const notSlower = { ratioAtLeast: 0.95 } as const;
/** The maximum ratio for rows in which less is better. */
export const noMore = { ratioAtMost: 1.05 } as const;

/** The sources of an earlier commit in a temporary folder. */
export interface EarlierCommit extends Disposable {
  readonly path: string;
}

/** Checks out the commit, and installs the packages of its lockfile. */
export async function checkOut(commit: string, signal: AbortSignal): Promise<EarlierCommit> {
  using stack = new DisposableStack();
  const path = join(stack.use(createScratchFolder('stowage-bench-')).folder, 'earlier');
  await command(['git', 'clone', '--quiet', '--shared', '--no-checkout', repository, path], signal);
  await command(['git', '-C', path, 'checkout', '--quiet', '--detach', commit], signal);
  await addPackages(path, signal);
  const all = stack.move();
  return { path, [Symbol.dispose]: () => all.dispose() };
}

async function addPackages(path: string, signal: AbortSignal): Promise<void> {
  const [mine, theirs] = await Promise.all(
    [repository, path].map((tree) => readFile(join(tree, 'package-lock.json'), 'utf8')),
  );
  if (mine === theirs) return await symlink(join(repository, 'node_modules'), join(path, 'node_modules'));
  await command(['npm', 'ci', '--ignore-scripts', '--prefix', path], signal);
}
