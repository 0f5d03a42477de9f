import { commandFailure, onPath } from './component.ts';
import { runner } from './run.ts';

/**
 * Makes what is mounted in the folder from now on seen by machines that are started later. In `npm test` all mounts are
 * shared already, and nothing is done.
 */
export async function sharedFolder(folder: string, signal: AbortSignal): Promise<AsyncDisposable> {
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
      // By force only for this one: what a test left in it is to be found.
      const why = commandFailure('umount', [folder]);
      if (why !== undefined) throw new Error(`${folder} could not be unmounted: ${why}`);
    },
  };
}
