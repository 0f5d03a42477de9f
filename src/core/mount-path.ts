import { stowageError } from './errors.ts';
import type { Mounts } from './mounts.ts';
import type { Mounter } from './ports.ts';

export function createMountPathResolver({ mounter }: { readonly mounter: Mounter }): Mounts['resolvePath'] {
  return async (path, scope) => {
    if (mounter.unable !== undefined) return path;
    try {
      return (await mounter.resolvePath(path, scope)) ?? path;
    } catch (thrown) {
      scope.signal.throwIfAborted();
      // Of a place that does not answer nobody is told that nothing is mounted there.
      if (stowageError(thrown).code === 'unavailable') throw thrown;
      return path;
    }
  };
}
