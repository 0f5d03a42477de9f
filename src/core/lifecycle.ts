import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Core } from './core.ts';
import { stowageError } from './errors.ts';
import { createRepairLoop, type RepairLoop } from './repair-loop.ts';

export interface CoreStart {
  readonly core: Pick<Core, 'engineMounts' | 'mounts' | 'references'>;
  readonly clock: Clock;
  /** Gives core its stores. Interrupted mounts are replayed before that. */
  configure(): Promise<void>;
  /** Called with the function that repairs dead mounts, once it can run. */
  repairable(repairLoop: RepairLoop): void;
}

/** Brings core's records and the kernel's mount table into agreement, so that core can take requests. */
export async function openCore({ core, clock, configure, repairable }: CoreStart, scope: Scope): Promise<void> {
  await core.mounts.replay(scope);
  await configure();
  await core.mounts.reconcile(scope);
  const repairLoop = createRepairLoop(core.mounts, clock, scope);
  repairable(repairLoop);
  // None of the following delays the start: a server or a container engine may not answer.
  void repairLoop.trigger();
  core.references.follow(scope);
  void core.engineMounts.reconcile(scope).catch((thrown: unknown) => scope.log.warn(stowageError(thrown).message));
  // A crash may have kept uses from being recorded on their stores.
  void core.mounts.renewUses(scope);
}

/** Call it when the operations are drained. Returns what stays mounted because it is in use, each with the reason. */
export async function closeCore(core: Pick<Core, 'mounts' | 'close'>, scope: Scope): Promise<readonly string[]> {
  const { inUse } = await core.mounts.unmountIdle(scope);
  await core.close();
  return inUse.map(({ mount, why }) => `${mount.target} (${why})`);
}
