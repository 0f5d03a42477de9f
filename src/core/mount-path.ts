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
      // If the path can't be reached, fail; don't report "not mounted".
      if (stowageError(thrown).code === 'unavailable') throw thrown;
      return path;
    }
  };
}
