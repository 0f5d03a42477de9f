import { requireMounting } from '#core/mount-errors.ts';
import type { Client, Mounter } from '#core/ports.ts';
import { confined, hasAll } from '../mounter/bind.ts';
import { createTableReader, type MountTable, same } from '../mounter/mountinfo.ts';
import type { Near } from '../mounter/near.ts';
import { locatedOwn } from '../mounter/paths.ts';
import { makeStage, removeStage, sourceAt } from './staging.ts';

export interface DirectoryClientParts {
  readonly mounter: Mounter;
  readonly readTable?: () => Promise<MountTable>;
  readonly near?: Near;
}

/** By names without a symbolic link in them; of others it cannot be told like this. */
function isStaged(table: MountTable, path: string, at: string): boolean {
  const there = table.at(at);
  return there !== undefined && same(there, table.shown(path)) && hasAll(there, confined);
}

/** A directory of this node: a bind mount. */
export function createDirectoryClient({
  mounter,
  readTable = createTableReader(),
  near = () => undefined,
}: DirectoryClientParts): Client<'directory'> {
  async function isFolderNear(path: string): Promise<boolean> {
    await using held = near(path, await readTable());
    return held?.stats.isDirectory() === true;
  }

  return {
    kind: 'directory',
    stage: async (source, at, scope) => {
      requireMounting(mounter);
      // As for every target but the first: then there is nothing to make.
      if (isStaged(await readTable(), source.path, at)) return;
      const path = (await isFolderNear(source.path)) ? source.path : (await sourceAt(source.path, 'folder')).path;
      const place = await makeStage(at, 'filesystem');
      const table = await readTable();
      const there = table.at(place);
      // A store on a read-only file system can only be shown read-only, and each of its mounts must ask for that.
      const readOnly = there?.mountReadOnly ?? table.holding(path)?.readOnly === true;
      await mounter.bind(path, place, { readOnly }, scope);
    },
    unstage: async (_source, at, scope) => {
      requireMounting(mounter);
      const place = locatedOwn(at);
      if (place === undefined) return;
      await mounter.unmount(place, scope);
      await removeStage(place, scope);
    },
    // It has the size of the file system around it.
    grow: async () => undefined,
  };
}
