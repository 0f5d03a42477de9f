import type { Clock } from '#base/clock.ts';
import type { KeyedLock } from '#base/keyed-lock.ts';
import type { Look } from './look.ts';
import type { LoopDevices } from './loop-devices.ts';
import type { LoopFiles } from './loop-files.ts';
import type { MountCalls } from './mount-calls.ts';
import type { MountTable } from './mountinfo.ts';
import type { Near } from './near.ts';
import type { Run } from './run.ts';

/** What binding and unmounting work with. */
export interface Parts extends LoopFiles {
  readonly clock: Clock;
  readonly run: Run;
  readonly calls: MountCalls;
  readonly readTable: () => Promise<MountTable>;
  readonly look: Look;
  readonly near: Near;
  /**
   * Directly in one of our own folders, which are in memory, or on the disk of our records, for which everybody waits anyway.
   * What is not mounted there is looked at in line.
   */
  readonly isOwn: (path: string) => boolean;
  /** A folder of ours for mounts that are not ready for their place. Undefined: there is none. */
  readonly aside: string | undefined;
  /** One call at a time for a place, else two binds would stack. */
  readonly places: KeyedLock;
  /** Where the kernel shows its block devices. */
  readonly sys: string;
  readonly loopDevices: LoopDevices;
}
