import type { Scope } from '#base/log.ts';
import type { SourceOf } from '#core/model.ts';
import { requireMounting } from '#core/mount-errors.ts';
import type { Client, Mounter } from '#core/ports.ts';
import { confiningFlags, hasFlags } from '../mounter/bind.ts';
import type { HoldLocal } from '../mounter/hold-local.ts';
import { createTableReader, isSameBind, type MountTable } from '../mounter/mountinfo.ts';
import { resolveOwnParents } from '../mounter/paths.ts';
import { locateSource, makeStage, removeStage } from './staging.ts';

export interface DirectoryClientParts {
  readonly mounter: Mounter;
  readonly readTable?: () => Promise<MountTable>;
  readonly holdLocal?: HoldLocal;
  /** Waits for programs that a killed Stowage left running. */
  readonly waitForOrphans?: (scope: Scope) => Promise<void>;
}

/** Compares paths by name, so it is reliable only for paths without symbolic links. */
function isStaged(table: MountTable, path: string, at: string): boolean {
  const currentMount = table.mountAt(at);
  return (
    currentMount !== undefined &&
    isSameBind(currentMount, table.bindIdentity(path)) &&
    hasFlags(currentMount, confiningFlags)
  );
}

/** All paths where the directory, or a part of it, is mounted, by any program, including hidden mounts. */
function mountsOf({ path }: SourceOf<'directory'>, table: MountTable): readonly string[] {
  const shown = table.bindIdentity(path);
  if (shown === undefined) return [];
  const prefix = shown.root === '/' ? '/' : `${shown.root}/`;
  const onDevice = table.entries.filter(({ device }) => device === shown.device);
  return onDevice.filter(({ root }) => root === shown.root || root.startsWith(prefix)).map(({ at }) => at);
}

/** Mounts a directory of this node with a bind mount. */
export function createDirectoryClient({
  mounter,
  readTable = createTableReader(),
  holdLocal = () => undefined,
  waitForOrphans = async () => undefined,
}: DirectoryClientParts): Client<'directory'> {
  async function isLocalFolder(path: string): Promise<boolean> {
    await using held = holdLocal(path, await readTable());
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
      const path = (await isLocalFolder(source.path)) ? source.path : (await locateSource(source.path, 'folder')).path;
      const mountPoint = await makeStage(at, 'filesystem');
      const table = await readTable();
      const currentMount = table.mountAt(mountPoint);
      // A directory on a read-only file system can be mounted read-only only, and each bind must request that.
      const readOnly = currentMount?.mountReadOnly ?? table.mountContaining(path)?.readOnly === true;
      await mounter.bind(path, mountPoint, { readOnly }, scope);
    },
    unstage: async (_source, { path: at }, scope) => {
      requireMounting(mounter);
      const mountPoint = resolveOwnParents(at);
      if (mountPoint === undefined) return;
      await mounter.unmount(mountPoint, scope);
      await removeStage(mountPoint, scope);
    },
    mountsOf: async (source, _target, scope) => {
      await waitForOrphans(scope);
      return mountsOf(source, await readTable());
    },
  };
}
