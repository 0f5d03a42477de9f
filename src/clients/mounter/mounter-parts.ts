import type { Clock } from '#base/clock.ts';
import type { KeyedLock } from '#base/keyed-lock.ts';
import type { HoldLocal } from './hold-local.ts';
import type { LoopDevices } from './loop-devices.ts';
import type { LoopFiles } from './loop-files.ts';
import type { MountCalls } from './mount-calls.ts';
import type { MountTable } from './mountinfo.ts';
import type { PathAccess } from './path-access.ts';
import type { RunProgram } from './run-program.ts';

/** The dependencies of bind and unmount. */
export interface MounterParts extends LoopFiles {
  readonly clock: Clock;
  readonly run: RunProgram;
  readonly calls: MountCalls;
  readonly readTable: () => Promise<MountTable>;
  readonly accessPath: PathAccess;
  readonly holdLocal: HoldLocal;
  /**
   * Whether the path is directly in one of Stowage's own folders. These are in memory or on the disk of the records, on which
   * everything depends anyway, so paths in them without a mount are accessed synchronously.
   */
  readonly isOwn: (path: string) => boolean;
  /** The folder for scratch mounts (`bindThroughScratch`). Undefined: there is none. */
  readonly scratchFolder: string | undefined;
  /** One call at a time for each mount point, else two binds would stack. */
  readonly mountLocks: KeyedLock;
  /** The kernel's folder of block devices. */
  readonly sysBlock: string;
  readonly loopDevices: LoopDevices;
}
