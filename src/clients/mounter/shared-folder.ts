import type { Mounter } from '#core/ports.ts';
import { holdPath } from './held-path.ts';
import { mountFailure } from './mount-failure.ts';
import type { MounterParts } from './mounter-parts.ts';

/** The source in the mount table. */
const source = 'stowage';

/** The folder in which container engines find volumes. */
export function createSharing(
  { calls, readTable, places }: MounterParts,
  unmount: Mounter['unmount'],
): Pick<Mounter, 'openShared' | 'closeShared'> {
  return {
    openShared: async (folder, { signal }) => {
      using _alone = await places.hold([folder], signal);
      if ((await readTable()).at(folder) !== undefined) return;
      try {
        await using place = await holdPath(folder);
        calls.memory(source, place);
        // Open it again: `place` is the mount point, which the mount now hides.
        await using mounted = await holdPath(folder);
        calls.share(mounted);
      } catch (cause) {
        throw mountFailure(`${folder} could not be made ready for container engines`, cause);
      }
    },
    closeShared: async (folder, scope) => {
      const table = await readTable();
      if (table.at(folder)?.source === source && table.below(folder).length === 0) await unmount(folder, scope);
    },
  };
}
