import { mkdtemp, readdir, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cacheFolder } from '#testbed/component.ts';
import { checkOut, type EarlierCommit } from '#testbed/earlier-commit.ts';
import { runner } from '#testbed/run.ts';

/** Checks out the version that `npm run test:upgrade -- COMMIT` names. */
export async function checkOutEarlierVersion(signal: AbortSignal): Promise<EarlierCommit> {
  const commit = process.env['STOWAGE_UPGRADE_FROM'];
  if (commit === undefined) throw new Error('name the earlier version: npm run test:upgrade -- COMMIT');
  return await checkOut(commit, signal);
}

/** The image of an earlier version, as a tar. */
export interface EarlierImage extends AsyncDisposable {
  readonly tar: string;
}

/**
 * Builds the image with the earlier version's own scripts. They delete images of other versions from the cache folder, so they get a cache
 * folder of their own, with links to the downloads.
 */
export async function buildEarlierImage({ path }: EarlierCommit, signal: AbortSignal): Promise<EarlierImage> {
  await using stack = new AsyncDisposableStack();
  const cache = await mkdtemp(join(tmpdir(), 'stowage-earlier-image-'));
  stack.defer(() => rm(cache, { recursive: true, force: true }));
  for (const name of await readdir(cacheFolder()))
    if (!name.startsWith('image-')) await symlink(join(cacheFolder(), name), join(cache, name));
  const source = "const { buildImage } = await import('./e2e/testbed/image.ts');";
  const program = `${source} console.log(await buildImage(AbortSignal.timeout(600_000)))`;
  const node = [process.execPath, '--disable-warning=ExperimentalWarning', '--input-type=module', '-e', program];
  const output = await runner(signal)('env', [`STOWAGE_TESTBED_CACHE=${cache}`, ...node], { cwd: path });
  const resources = stack.move();
  return { tar: output.trim(), [Symbol.asyncDispose]: () => resources.disposeAsync() };
}
