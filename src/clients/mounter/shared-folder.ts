import type { Mounter } from '#core/ports.ts';
import { holdPath } from './held-path.ts';
import { mountFailure } from './mount-failure.ts';
import type { MounterParts } from './mounter-parts.ts';

/** The source in the mount table. */
const source = 'stowage';

/** The folder in which container engines find volumes. */
export function createSharing(
  { calls, readTable, mountLocks }: MounterParts,
  unmount: Mounter['unmount'],
): Pick<Mounter, 'openShared' | 'closeShared'> {
  return {
    openShared: async (folder, { signal }) => {
      using _alone = await mountLocks.hold([folder], signal);
      if ((await readTable()).mountAt(folder) !== undefined) return;
      try {
        await using heldFolder = await holdPath(folder);
        calls.tmpfs(source, heldFolder);
        // Open it again: `heldFolder` is the mount point, which the mount now hides.
        await using mounted = await holdPath(folder);
        calls.makeShared(mounted);
      } catch (cause) {
        throw mountFailure(`${folder} could not be made ready for container engines`, cause);
      }
    },
    closeShared: async (folder, scope) => {
      const table = await readTable();
      if (table.mountAt(folder)?.source === source && table.mountsBelow(folder).length === 0)
        await unmount(folder, scope);
    },
  };
}
