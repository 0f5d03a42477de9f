import { commandFailure, onPath } from './component.ts';
import { runner } from './run.ts';

/**
 * Makes later mounts in the folder visible to machines that start afterwards. In `npm test` all mounts are shared
 * already, so it does nothing.
 */
export async function shareFolder(folder: string, signal: AbortSignal): Promise<AsyncDisposable> {
  const run = runner(signal);
  const found = await run(onPath('findmnt') ?? 'findmnt', [
    '--noheadings',
    '--output',
    'PROPAGATION',
    '--target',
    folder,
  ]);
  if (found.split(/[\s,]+/).includes('shared')) return { [Symbol.asyncDispose]: async () => undefined };
  await run('mount', ['--bind', folder, folder]);
  await run('mount', ['--make-rshared', folder]);
  return {
    [Symbol.asyncDispose]: async () => {
      // Unmounts only this mount, so that a mount that a test left inside causes an error.
      const why = commandFailure('umount', [folder]);
      if (why !== undefined) throw new Error(`${folder} could not be unmounted: ${why}`);
    },
  };
}
