import { readlinkSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Scope } from '#base/log.ts';
import type { Mounter } from '#core/ports.ts';
import { createBind } from './bind.ts';
import { createHoldLocal } from './hold-local.ts';
import { createLoopDevices } from './loop-devices.ts';
import { createLoopFiles } from './loop-files.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import type { MounterParts } from './mounter-parts.ts';
import { createTableReader, type MountTable } from './mountinfo.ts';
import { createOrphanWait } from './orphaned-programs.ts';
import { createPathAccess } from './path-access.ts';
import { reap } from './reap.ts';
import type { RunProgram } from './run-program.ts';
import { createSharing } from './shared-folder.ts';
import { createTargets } from './targets.ts';
import { createDetach, createUnmount, createUnmountLocked } from './unmount.ts';

export interface LinuxMounterOptions {
  readonly clock: Clock;
  readonly run: RunProgram;
  readonly calls?: MountCalls;
  /** Waits for programs that a killed Stowage left running. */
  readonly waitForOrphans?: (scope: Scope) => Promise<void>;
  /** Folders with the files of Stowage's loop devices. */
  readonly storeRoots: () => readonly string[];
  /** Folders in which nothing may be mounted: the state folder and the store roots. */
  readonly forbiddenFolders: () => readonly string[];
  /** The folder inside the state folder where container engines find volumes. */
  readonly publishedFolder?: string;
  /** The folder inside the state folder where volumes are staged. */
  readonly mountsFolder?: string;
  readonly readTable?: () => Promise<MountTable>;
  readonly sysBlock?: string;
}

export function createLinuxMounter(options: LinuxMounterOptions): Mounter {
  const { clock, run, calls = mountCalls, readTable = createTableReader(), sysBlock = '/sys/block' } = options;
  const accessPath = createPathAccess(clock);
  const ownFolders = [options.publishedFolder, options.mountsFolder];
  const isOwn = (path: string): boolean => ownFolders.includes(dirname(path));
  const scratchFolder = options.mountsFolder;
  const holdLocal = createHoldLocal(options.mountsFolder);
  const loops = { sysBlock, ...createLoopFiles(clock), loopDevices: createLoopDevices(clock, sysBlock) };
  const parts: MounterParts = {
    clock,
    run,
    calls,
    readTable,
    accessPath,
    holdLocal,
    ...loops,
    isOwn,
    scratchFolder,
    mountLocks: createKeyedLock(),
  };
  const { forbiddenFolders, publishedFolder } = options;
  const targets = createTargets({ accessPath, holdLocal, readTable, forbiddenFolders, publishedFolder });
  const waitForOrphans = options.waitForOrphans ?? createOrphanWait(clock, '');
  const unmountLocked = createUnmountLocked(parts);
  const unmount = createUnmount(parts, unmountLocked);
  const bind = createBind(parts, unmountLocked);
  const detach = createDetach(parts);
  const list: Mounter['list'] = async (scope) => {
    await waitForOrphans(scope);
    return (await readTable()).visible();
  };
  return {
    unable: undefined,
    bind: async (from, at, how, scope) => {
      await waitForOrphans(scope);
      await bind(from, at, how, scope);
    },
    unmount: async (at, scope) => {
      await waitForOrphans(scope);
      await unmount(at, scope);
    },
    detach: async (at, scope, how) => {
      await waitForOrphans(scope);
      await detach(at, scope, how);
    },
    ...createSharing(parts, unmount),
    list,
    isMounted: async (at, scope) => {
      await waitForOrphans(scope);
      // Most of these paths do not exist; reading the whole mount table for them would cost far more.
      return exists(at) && (await readTable()).mountAt(at) !== undefined;
    },
    ...targets,
    reap: async (mountsFolder, known, scope) => {
      await waitForOrphans(scope);
      const reapParts = { ...parts, ...targets, unmount, storeRoots: options.storeRoots };
      return await reap(reapParts, mountsFolder, known, scope);
    },
  };
}

/** readlink(2) does not reach the server of a mount, as stat(2) would, so it cannot block. */
function exists(path: string): boolean {
  try {
    readlinkSync(path);
    return true;
  } catch (cause) {
    return !isErrno(cause, 'ENOENT', 'ENOTDIR');
  }
}
