import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Engine } from './engine.ts';
import { stowageError } from './errors.ts';
import { createRepairing, type Repairing } from './repairing.ts';

export interface EngineStart {
  readonly engine: Pick<Engine, 'mounts' | 'references' | 'holds'>;
  readonly clock: Clock;
  /** Gives the engine its stores. Interrupted mounts are replayed before that. */
  configure(): Promise<void>;
  /** Called with the function that repairs dead mounts, once it can run. */
  repairable(repairing: Repairing): void;
}

/** Brings the engine's records and the kernel's mount table into agreement, so that the engine can take requests. */
export async function startEngine({ engine, clock, configure, repairable }: EngineStart, scope: Scope): Promise<void> {
  await engine.mounts.replay(scope);
  await configure();
  await engine.mounts.reconcile(scope);
  const repairing = createRepairing(engine.mounts, clock, scope);
  repairable(repairing);
  // None of the following delays the start: a server or a container engine may not answer.
  void repairing.look();
  engine.references.follow(scope);
  void engine.holds.settle(scope).catch((thrown: unknown) => scope.log.warn(stowageError(thrown).message));
  // A crash may have kept uses from being recorded on their stores.
  void engine.mounts.renewUses(scope);
}

/** Call it when the operations are drained. Returns what stays mounted because it is in use, each with the reason. */
export async function closeEngine(engine: Pick<Engine, 'mounts' | 'close'>, scope: Scope): Promise<readonly string[]> {
  const { inUse } = await engine.mounts.unmountIdle(scope);
  await engine.close();
  return inUse.map(({ mount, why }) => `${mount.target} (${why})`);
}
