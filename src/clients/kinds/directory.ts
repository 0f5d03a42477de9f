import type { Scope } from '#base/log.ts';
import type { SourceOf } from '#core/model.ts';
import { requireMounting } from '#core/mount-errors.ts';
import type { Client, Mounter } from '#core/ports.ts';
import { confined, hasAll } from '../mounter/bind.ts';
import type { HoldLocal } from '../mounter/hold-local.ts';
import { createTableReader, type MountTable, same } from '../mounter/mountinfo.ts';
import { locatedOwn } from '../mounter/paths.ts';
import { makeStage, removeStage, sourceAt } from './staging.ts';

export interface DirectoryClientParts {
  readonly mounter: Mounter;
  readonly readTable?: () => Promise<MountTable>;
  readonly near?: HoldLocal;
  /** Waits for programs that a killed Stowage left running. */
  readonly settled?: (scope: Scope) => Promise<void>;
}

/** Compares paths by name, so it is reliable only for paths without symbolic links. */
function isStaged(table: MountTable, path: string, at: string): boolean {
  const there = table.at(at);
  return there !== undefined && same(there, table.shown(path)) && hasAll(there, confined);
}

/** All paths where the directory, or a part of it, is mounted, by any program, including hidden mounts. */
function mountsOf({ path }: SourceOf<'directory'>, table: MountTable): readonly string[] {
  const shown = table.shown(path);
  if (shown === undefined) return [];
  const below = shown.root === '/' ? '/' : `${shown.root}/`;
  const same = table.entries.filter(({ device }) => device === shown.device);
  return same.filter(({ root }) => root === shown.root || root.startsWith(below)).map(({ at }) => at);
}

/** Mounts a directory of this node with a bind mount. */
export function createDirectoryClient({
  mounter,
  readTable = createTableReader(),
  near = () => undefined,
  settled = async () => undefined,
}: DirectoryClientParts): Client<'directory'> {
  async function isFolderNear(path: string): Promise<boolean> {
    await using held = near(path, await readTable());
    return held?.stats.isDirectory() === true;
  }

  return {
    kind: 'directory',
    nodeLocal: true,
    outlivesMount: false,
    sourceFixedWhileStaged: true,
    stage: async (source, { path: at }, scope) => {
      requireMounting(mounter);
      // For every target but the first the stage exists already.
      if (isStaged(await readTable(), source.path, at)) return;
      const path = (await isFolderNear(source.path)) ? source.path : (await sourceAt(source.path, 'folder')).path;
      const place = await makeStage(at, 'filesystem');
      const table = await readTable();
      const there = table.at(place);
      // A directory on a read-only file system can be mounted read-only only, and each bind must ask for that.
      const readOnly = there?.mountReadOnly ?? table.holding(path)?.readOnly === true;
      await mounter.bind(path, place, { readOnly }, scope);
    },
    unstage: async (_source, { path: at }, scope) => {
      requireMounting(mounter);
      const place = locatedOwn(at);
      if (place === undefined) return;
      await mounter.unmount(place, scope);
      await removeStage(place, scope);
    },
    mountsOf: async (source, _target, scope) => {
      await settled(scope);
      return mountsOf(source, await readTable());
    },
  };
}
