import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Core } from './core.ts';
import { stowageError } from './errors.ts';
import { createRepairLoop, type RepairLoop } from './repair-loop.ts';

export interface CoreStart {
  readonly core: Pick<Core, 'engineMounts' | 'mounts' | 'references'>;
  readonly clock: Clock;
  /** Configures the stores. Runs after the replay of interrupted mounts. */
  configure(): Promise<void>;
  /** Receives the repair loop once it can run. */
  onRepairLoop(repairLoop: RepairLoop): void;
}

/** Brings core's records and the kernel's mount table into agreement, so that core can take requests. */
export async function openCore({ core, clock, configure, onRepairLoop }: CoreStart, scope: Scope): Promise<void> {
  await core.mounts.replay(scope);
  await configure();
  await core.mounts.reconcile(scope);
  const repairLoop = createRepairLoop(core.mounts, clock, scope);
  onRepairLoop(repairLoop);
  // Nothing below may delay the start, since a server or a container engine may not answer.
  void repairLoop.trigger();
  core.references.follow(scope);
  void core.engineMounts.reconcile(scope).catch((thrown: unknown) => scope.log.warn(stowageError(thrown).message));
  // A crash may have prevented use records from being written.
  void core.mounts.renewUses(scope);
}

/** Call it after draining operations. Returns the targets that stay mounted because they are in use, with the reasons. */
export async function closeCore(core: Pick<Core, 'mounts' | 'close'>, scope: Scope): Promise<readonly string[]> {
  const { inUse } = await core.mounts.unmountIdle(scope);
  await core.close();
  return inUse.map(({ mount, why }) => `${mount.target} (${why})`);
}
