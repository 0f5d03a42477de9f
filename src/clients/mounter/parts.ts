import type { Clock } from '#base/clock.ts';
import type { KeyedLock } from '#base/keyed-lock.ts';
import type { Look } from './look.ts';
import type { MountCalls } from './mount-calls.ts';
import type { MountTable } from './mountinfo.ts';
import type { Run } from './run.ts';

/** What binding and unmounting work with. */
export interface Parts {
  readonly clock: Clock;
  readonly run: Run;
  readonly calls: MountCalls;
  readonly readTable: () => Promise<MountTable>;
  readonly look: Look;
  /** One call at a time for a place, else two binds would stack. */
  readonly places: KeyedLock;
  /** Where the kernel shows its block devices. */
  readonly sys: string;
}
