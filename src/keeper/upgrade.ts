import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { HeldDescriptors } from './held-descriptors.ts';
import { KeeperError, outOfReach } from './protocol.ts';
import { within } from './unless-aborted.ts';
import type { Worker } from './worker.ts';

/** The processes of one keeper, and what is started next. */
export interface Workers {
  program: string;
  /** Has everything. Stays until it is certain that it is gone. */
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
  /** Others decide now. */
  readonly isOver: () => boolean;
}

const startMs = 30_000;
const stopMs = 2_000;
const endMs = 10_000;

/** Another program under live mounts: it is loaded first, and the old one gives up only then. */
export function createUpgrades({ workers, held, clock, log, launch, reconcile, retire, isOver }: UpgradePorts): {
  upgrade(program: string, signal: AbortSignal): Promise<void>;
  /** It cannot serve all mounts. True: it was on trial, and is ended; the program before serves again. */
  refused(worker: Worker): boolean;
} {
  let isUpgrading = false;
  let trial: { readonly candidate: Worker; readonly before: string; isRefused: boolean } | undefined;

  async function loaded(program: string, signal: AbortSignal): Promise<Worker> {
    const candidate = launch(program);
    const greeted = candidate?.greeted ?? Promise.resolve(false);
    const hasStarted = await within(greeted, startMs, clock, signal).catch(() => false);
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
    const candidate = await loaded(program, signal);
    const before = workers.program;
    const { active } = workers;
    retireStandby();
    [workers.program, workers.standby] = [program, candidate];
    const own = { candidate, before, isRefused: false };
    trial = own;
    reconcile();
    if (active !== undefined) await stopped(active, signal);
    if (held.mounts.size === 0) return;
    if (await within(candidate.ready, startMs, clock, signal)) return;
    workers.program = before;
    if (workers.standby?.program === program) retireStandby();
    reconcile();
    const why = own.isRefused ? 'cannot serve all mounts' : 'took over and died';
    throw new KeeperError('not-ready', `the new program ${why}; the one before serves again`);
  }

  /** One that cannot be killed is not waited for as long: the new program serves whenever it has ended after all. */
  async function stopped(active: Worker, signal: AbortSignal): Promise<void> {
    const stopping = stopWorker(active, clock, log, signal);
    if (!active.isOutOfReach()) return await stopping;
    await within(stopping, stopMs + endMs, clock, signal).catch((cause: unknown) => {
      throw cause instanceof DeadlineExceeded ? outOfReach('the data path before does not stop') : cause;
    });
  }

  return {
    upgrade: async (program, signal) => {
      if (isUpgrading) throw new KeeperError('busy', 'another upgrade is under way');
      isUpgrading = true;
      try {
        await replace(program, signal);
      } finally {
        isUpgrading = false;
        trial = undefined;
      }
    },
    refused: (worker) => {
      if (trial?.candidate !== worker || worker.isReady) return false;
      trial.isRefused = true;
      // Now: nobody else of this program shall be given everything when it is gone.
      workers.program = trial.before;
      retireStandby();
      void worker.end();
      return true;
    },
  };
}

/** At a boundary between requests if it can; else it is killed, and what it was doing is found in the journal. */
export async function stopWorker(worker: Worker, clock: Clock, log: Log, signal: AbortSignal): Promise<void> {
  worker.connection.send({ kind: 'stop' });
  if (await within(worker.stopped, stopMs, clock, signal).catch(() => false)) return;
  log.warn('a data path did not stop, and is killed', { pid: worker.about?.pid });
  await worker.end();
}
