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
import type { Run } from './run-program.ts';
import { createSharing } from './shared-folder.ts';
import { createTargets } from './targets.ts';
import { createDetach, createTakeAway, createUnmount } from './unmount.ts';

export interface LinuxMounterOptions {
  readonly clock: Clock;
  readonly run: Run;
  readonly calls?: MountCalls;
  /** Waits for programs that a killed Stowage left running. */
  readonly settled?: (scope: Scope) => Promise<void>;
  /** Folders with the files of Stowage's loop devices. */
  readonly storeRoots: () => readonly string[];
  /** Folders in which nothing may be mounted: the state folder and the store roots. */
  readonly forbidden: () => readonly string[];
  /** The folder inside the state folder where container engines find volumes. */
  readonly published?: string;
  /** The folder inside the state folder where volumes are staged. */
  readonly mounts?: string;
  readonly readTable?: () => Promise<MountTable>;
  readonly sys?: string;
}

export function createLinuxMounter(options: LinuxMounterOptions): Mounter {
  const { clock, run, calls = mountCalls, readTable = createTableReader(), sys = '/sys/block' } = options;
  const accessPath = createPathAccess(clock);
  const own = [options.published, options.mounts];
  const isOwn = (path: string): boolean => own.includes(dirname(path));
  const aside = options.mounts;
  const near = createHoldLocal(options.mounts);
  const loops = { sys, ...createLoopFiles(clock), loopDevices: createLoopDevices(clock, sys) };
  const parts: MounterParts = {
    clock,
    run,
    calls,
    readTable,
    accessPath,
    near,
    ...loops,
    isOwn,
    aside,
    places: createKeyedLock(),
  };
  const { forbidden, published } = options;
  const targets = createTargets({ accessPath, near, readTable, forbidden, published });
  const settled = options.settled ?? createOrphanWait(clock, '');
  const takeAway = createTakeAway(parts);
  const unmount = createUnmount(parts, takeAway);
  const bind = createBind(parts, takeAway);
  const detach = createDetach(parts);
  const list: Mounter['list'] = async (scope) => {
    await settled(scope);
    return (await readTable()).visible();
  };
  return {
    unable: undefined,
    bind: async (from, at, how, scope) => {
      await settled(scope);
      await bind(from, at, how, scope);
    },
    unmount: async (at, scope) => {
      await settled(scope);
      await unmount(at, scope);
    },
    detach: async (at, scope, how) => {
      await settled(scope);
      await detach(at, scope, how);
    },
    ...createSharing(parts, unmount),
    list,
    isMounted: async (at, scope) => {
      await settled(scope);
      // Most of these paths do not exist; reading the whole mount table for them would cost far more.
      return isThere(at) && (await readTable()).at(at) !== undefined;
    },
    ...targets,
    reap: async (mountsFolder, known, scope) => {
      await settled(scope);
      const reaping = { ...parts, ...targets, unmount, storeRoots: options.storeRoots };
      return await reap(reaping, mountsFolder, known, scope);
    },
  };
}

/** readlink(2) does not reach the server of a mount, as stat(2) would, so it cannot block. */
function isThere(path: string): boolean {
  try {
    readlinkSync(path);
    return true;
  } catch (cause) {
    return !isErrno(cause, 'ENOENT', 'ENOTDIR');
  }
}
