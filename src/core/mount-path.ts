import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import type { Mounter } from './ports.ts';

/**
 * Resolves symbolic links in a target path, as mounts are recorded. Returns the path itself if it does not exist; 'unavailable' if its
 * disk or server does not answer.
 */
export type ResolveMountPath = (path: string, scope: Scope) => Promise<string>;

export function createMountPathResolver({ mounter }: { readonly mounter: Mounter }): ResolveMountPath {
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
