import { randomUUID } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Keepers } from '#clients/data-path/keepers.ts';
import { createDirectoryClient } from '#clients/kinds/directory.ts';
import { createLoopClient } from '#clients/kinds/loop.ts';
import { createNfsClient } from '#clients/kinds/nfs.ts';
import { createMounter } from '#clients/mounter/create-mounter.ts';
import { createHoldLocal } from '#clients/mounter/hold-local.ts';
import { createTableReader } from '#clients/mounter/mountinfo.ts';
import { createOrphanWait } from '#clients/mounter/orphaned-programs.ts';
import { createPathAccess } from '#clients/mounter/path-access.ts';
import { createRunProgram } from '#clients/mounter/run-program.ts';
import type { ContainerEngine } from '#core/containers.ts';
import { createCore, type WholeCore } from '#core/core.ts';
import type { NodeName } from '#core/model.ts';
import type { LocalDirectory, ProcessMarks, Records, StoreKind } from '#core/ports.ts';
import { takeProcessMarks } from './process-marks.ts';
import { bootId, instanceOf, type StateFolder, stateFolderId } from './state-folder.ts';
import { localDirectoryOf } from './store-overlaps.ts';

export interface AppCoreOptions {
  readonly records: Records;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly state: StateFolder;
  readonly keepers: Keepers;
  readonly engines: readonly ContainerEngine[];
  /** The name of this machine. */
  readonly node: NodeName;
  /** Undefined: use the marks recorded in the state folder. */
  readonly marks: ProcessMarks | undefined;
  readonly clock: Clock;
  readonly log: Log;
}

/** Creates core with the stores and clients of this program. */
export async function createAppCore(pieces: AppCoreOptions): Promise<WholeCore> {
  const { records, kinds, state, keepers, engines, node, clock, log } = pieces;
  const run = createRunProgram(clock, undefined, state.path);
  const directories = (): readonly LocalDirectory[] =>
    core.stores.list().flatMap(({ config }) => localDirectoryOf(kinds, config) ?? []);
  const readTable = createTableReader();
  // Shared, since only the first read of the mount table waits.
  const waitForOrphans = createOrphanWait(clock, state.path);
  const mounter = await createMounter({
    clock,
    run,
    readTable,
    waitForOrphans,
    // Loop devices on files of other stores belong to their users.
    storeRoots: () => directories().flatMap(({ path, hasImages }) => (hasImages ? path : [])),
    forbiddenFolders: () => [state.path, ...directories().map(({ path }) => path)],
    publishedFolder: state.published,
    mountsFolder: state.mounts,
  });
  const instance = instanceOf(records);
  const boot = await bootId();
  const core = createCore({
    records,
    kinds,
    mounter,
    clients: {
      directory: createDirectoryClient({
        mounter,
        readTable,
        waitForOrphans,
        holdLocal: createHoldLocal(state.mounts),
      }),
      loop: createLoopClient({ mounter, run, clock, waitForOrphans }),
      nfs: createNfsClient({
        mounter,
        run,
        clock,
        keepers,
        instance,
        accessPath: createPathAccess(clock),
        readTable,
        waitForOrphans,
      }),
    },
    mountsFolder: state.mounts,
    publishedFolder: state.published,
    engines,
    instance,
    epoch: randomUUID().slice(0, 8),
    boot,
    marks: pieces.marks ?? takeProcessMarks(records, await stateFolderId(state.path)),
    node,
    clock,
    log,
  });
  return core;
}
