import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { HeldDescriptors } from './held-descriptors.ts';
import { KeeperError, outOfReach } from './protocol.ts';
import { withTimeout } from './with-timeout.ts';
import type { Worker } from './worker.ts';

/** A keeper's data paths, and the program to start next. */
export interface Workers {
  program: string;
  /** The data path that has everything. Stays set until that process is certainly gone. */
  active: Worker | undefined;
  standby: Worker | undefined;
}

interface UpgradePorts {
  readonly workers: Workers;
  readonly held: HeldDescriptors;
  readonly clock: Clock;
  readonly log: Log;
  readonly launch: (program: string) => Worker | undefined;
  readonly reconcile: () => void;
  readonly retire: (worker: Worker) => Promise<void>;
  /** The supervisor is stopped or frozen. */
  readonly isOver: () => boolean;
}

const startTimeoutMs = 30_000;
const stopTimeoutMs = 2_000;
const killTimeoutMs = 10_000;

/** Replaces the program under live mounts: loads the new one first, then stops the old one. */
export function createUpgrades({ workers, held, clock, log, launch, reconcile, retire, isOver }: UpgradePorts): {
  upgrade(program: string, signal: AbortSignal): Promise<void>;
  /** The worker cannot serve all mounts. True: it was on trial; it is ended, and the previous program serves again. */
  handleRefusal(worker: Worker): boolean;
} {
  let isUpgrading = false;
  let trial: { readonly candidate: Worker; readonly previousProgram: string; isRefused: boolean } | undefined;

  async function loadProgram(program: string, signal: AbortSignal): Promise<Worker> {
    const candidate = launch(program);
    const greeted = candidate?.greeted ?? Promise.resolve(false);
    const hasStarted = await withTimeout(greeted, startTimeoutMs, clock, signal).catch(() => false);
    if (candidate !== undefined && hasStarted && !isOver()) return candidate;
    if (candidate !== undefined) void retire(candidate);
    if (hasStarted) throw new KeeperError('moving', 'the keeper is being replaced');
    throw new KeeperError('not-started', 'the new program did not start');
  }

  function retireStandby(): void {
    if (workers.standby !== undefined) void retire(workers.standby);
    workers.standby = undefined;
  }

  async function replace(program: string, signal: AbortSignal): Promise<void> {
    const candidate = await loadProgram(program, signal);
    const previousProgram = workers.program;
    const { active } = workers;
    retireStandby();
    [workers.program, workers.standby] = [program, candidate];
    const currentTrial = { candidate, previousProgram, isRefused: false };
    trial = currentTrial;
    reconcile();
    if (active !== undefined) await stopUnlessUnreachable(active, signal);
    if (held.mounts.size === 0) return;
    if (await withTimeout(candidate.ready, startTimeoutMs, clock, signal)) return;
    workers.program = previousProgram;
    if (workers.standby?.program === program) retireStandby();
    reconcile();
    const why = currentTrial.isRefused ? 'cannot serve all mounts' : 'took over and died';
    throw new KeeperError('not-ready', `the new program ${why}; the previous program serves again`);
  }

  /**
   * For a data path that cannot be killed, do not wait as long: the new program serves whenever the old one has ended.
   */
  async function stopUnlessUnreachable(active: Worker, signal: AbortSignal): Promise<void> {
    const stopping = stopWorker(active, clock, log, signal);
    if (!active.isOutOfReach()) return await stopping;
    await withTimeout(stopping, stopTimeoutMs + killTimeoutMs, clock, signal).catch((cause: unknown) => {
      throw cause instanceof DeadlineExceeded ? outOfReach('the previous data path does not stop') : cause;
    });
  }

  return {
    upgrade: async (program, signal) => {
      if (isUpgrading) throw new KeeperError('busy', 'another upgrade is in progress');
      isUpgrading = true;
      try {
        await replace(program, signal);
      } finally {
        isUpgrading = false;
        trial = undefined;
      }
    },
    handleRefusal: (worker) => {
      if (trial?.candidate !== worker || worker.isReady) return false;
      trial.isRefused = true;
      // Reset the program now, so that no other process of it gets everything.
      workers.program = trial.previousProgram;
      retireStandby();
      void worker.end();
      return true;
    },
  };
}

/** Stops it between two requests if possible, else kills it; the journal has what it was doing. */
export async function stopWorker(worker: Worker, clock: Clock, log: Log, signal: AbortSignal): Promise<void> {
  worker.connection.send({ kind: 'stop' });
  if (await withTimeout(worker.stopped, stopTimeoutMs, clock, signal).catch(() => false)) return;
  log.warn('a data path did not stop in time: killing it', { pid: worker.info?.pid });
  await worker.end();
}
