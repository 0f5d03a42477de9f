import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { type HeldDescriptors, type HeldMount, holdSockets, sendHeldDescriptors } from './held-descriptors.ts';
import { createPendingFlushes } from './pending-flushes.ts';
import type { KeeperState, MessageOf } from './protocol.ts';
import { createRestartBackoff } from './restart-backoff.ts';
import { within } from './unless-aborted.ts';
import { createUpgrades, stopWorker, type Workers } from './upgrade.ts';
import { createWatchdog } from './watchdog.ts';
import { createWorker, type ProcessHandle, type ProcessInfo, type Worker } from './worker.ts';

export interface SupervisorOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Starts the program of a data path, which then waits for what it is to serve. */
  readonly start: (program: string) => ProcessHandle;
  readonly program: string;
  /** Where data paths find a keeper when this one is gone. */
  readonly path: string;
  /** Dropped at the end by whoever made it. */
  readonly held: HeldDescriptors;
  /** A data path has had the journal already. */
  readonly wasServed: boolean;
  /** One that still serves it. */
  readonly serving: { readonly child: ProcessHandle; readonly about: ProcessInfo } | undefined;
  readonly changed: () => void;
}

/** Keeps one data path serving, and another one loaded and waiting. */
export interface Supervisor {
  readonly state: Omit<KeeperState, 'doing' | 'shares'> & {
    readonly doing: 'idle' | 'serving' | 'taking over' | 'failing';
  };
  /** None serves, or is about to be ended. */
  readonly isEmpty: boolean;
  add(mount: HeldMount): void;
  remove(id: string): void;
  /** Has what was written put on the server's disk within the time; gives how many files are not whole there. */
  flush(id: string, ms: number, signal: AbortSignal): Promise<number>;
  /** Resolves when the new program serves. If it cannot, the old one goes on. */
  upgrade(program: string, signal: AbortSignal): Promise<void>;
  /** Tells the data path to make itself known to another keeper. Undefined: it cannot. Else whether it still lives. */
  move(path: string): (() => boolean) | undefined;
  /** Nobody takes over until it is disposed of. */
  freeze(): Disposable;
  /** Gives up everything without ending what serves. */
  release(): void;
  /** Ends everything. */
  end(signal: AbortSignal): Promise<void>;
}

/** The successor shall have the processor to itself, as long as it is not ready. */
const standbyDelayMs = 1_000;
const failing = { deaths: 5, ms: 60_000 } as const;
const exitTimeoutMs = 2_000;
const neverAborted = new AbortController().signal;

export function createSupervisor(options: SupervisorOptions): Supervisor {
  const { clock, log, start, path, held, changed } = options;
  const backoff = createRestartBackoff(clock);
  const workers: Workers = { program: options.program, active: undefined, standby: undefined };
  const retired = new WeakSet<Worker>();
  const flushes = createPendingFlushes(clock, (question) => workers.active?.connection.send(question));
  let promotedAt = Number.NEGATIVE_INFINITY;
  let { wasServed } = options;
  let takeovers = 0;
  let report = '';
  let deaths: readonly number[] = [];
  let isFrozen = false;
  let isOver = false;
  let later: Disposable | undefined;

  /** Does whatever is to be done now. Called after everything that may have changed that. */
  function reconcile(): void {
    if (isOver || isFrozen) return;
    if (workers.active === undefined && held.mounts.size > 0 && workers.standby?.about !== undefined)
      promote(workers.standby);
    if (workers.standby === undefined) startStandby();
    changed();
  }

  function promote(worker: Worker): void {
    [workers.active, workers.standby] = [worker, undefined];
    promotedAt = clock.elapsed();
    watchdog.reset();
    if (wasServed) takeovers++;
    sendHeldDescriptors(worker.connection, held, { kind: 'serve', as: wasServed ? 'successor' : 'first', path });
    wasServed = true;
    flushes.resend();
    log.info('a data path has everything', { pid: worker.about?.pid, mounts: held.mounts.size, takeovers });
  }

  function startStandby(): void {
    const standbyDelay = workers.active?.isReady === false ? promotedAt + standbyDelayMs - clock.elapsed() : 0;
    const wait = Math.max(standbyDelay, backoff.delayMs());
    if (wait > 0) reconcileLater(wait);
    else workers.standby = launch(workers.program);
  }

  function reconcileLater(ms: number): void {
    later?.[Symbol.dispose]();
    later = clock.after(ms, reconcile);
  }

  function launch(program: string): Worker | undefined {
    backoff.started();
    try {
      return createWorker({
        child: start(program),
        program,
        clock,
        events: { changed: workerChanged, stopped: workerStopped, said: workerSaid, lost: workerLost },
      });
    } catch (cause) {
      log.error('a data path could not be started', { cause });
      backoff.failed();
      reconcileLater(backoff.delayMs());
      return undefined;
    }
  }

  function workerChanged(worker: Worker): void {
    if (worker === workers.active && worker.isReady) backoff.succeeded();
    reconcile();
  }

  /**
   * It does nothing more for the mounts, but what it had begun besides might still reach the journal: the next one begins when it is
   * gone. One that cannot be seen to go (its process is out of reach) is believed after a while.
   */
  function workerStopped(worker: Worker): void {
    void within(retire(worker), exitTimeoutMs, clock, neverAborted)
      .catch(() => log.warn('a data path has stopped, and does not end', { pid: worker.about?.pid }))
      .then(() => {
        if (worker === workers.active) workers.active = undefined;
        reconcile();
      });
  }

  type WorkerMessage = MessageOf<'holding' | 'letGo' | 'ended' | 'flushed' | 'report'>;
  function workerSaid(worker: Worker, message: WorkerMessage, descriptors: number[]): void {
    // One that has given up may have said more than we had heard by then.
    if (worker !== workers.active) return;
    if (message.kind === 'holding') holdSockets(held, message, descriptors);
    else if (message.kind === 'letGo') held.dropSocket(message.socket);
    else if (message.kind === 'ended') endMount(worker, message);
    else if (message.kind === 'flushed') flushes.answered(message);
    else report = message.text;
    changed();
  }

  function endMount(worker: Worker, { mount, unserved }: MessageOf<'ended'>): void {
    if (unserved === true) log.error('a data path cannot serve a mount', { pid: worker.about?.pid, mount });
    if (unserved !== true || !upgrades.refused(worker)) remove(mount);
  }

  function workerLost(worker: Worker, why: string): void {
    if (retired.has(worker)) return;
    log.warn('a data path is gone', { pid: worker.about?.pid, served: worker === workers.active, why });
    deaths = [...recentDeaths(), clock.elapsed()];
    if (worker === workers.active ? !worker.isReady : worker.about === undefined) backoff.failed();
    if (worker === workers.standby) workers.standby = undefined;
    // Two that serve the same mounts would destroy data: only when it is certainly gone may the next one begin.
    void worker.end().then(() => {
      if (worker === workers.active) workers.active = undefined;
      if (workers.active === undefined && held.mounts.size === 0)
        for (const id of [...held.sockets.keys()]) held.dropSocket(id);
      reconcile();
    });
    reconcile();
  }

  const recentDeaths = (): readonly number[] => deaths.filter((at) => at > clock.elapsed() - failing.ms);

  function remove(id: string): void {
    if (held.dropMount(id)) workers.active?.connection.send({ kind: 'remove', mount: id });
    changed();
  }

  /** Ends one whose end is no surprise. */
  function retire(worker: Worker): Promise<void> {
    retired.add(worker);
    return worker.end();
  }

  function doing(): Supervisor['state']['doing'] {
    if (recentDeaths().length >= failing.deaths) return 'failing';
    if (held.mounts.size === 0) return 'idle';
    const serves = workers.active?.isReady === true && !workers.active.isEnding && workers.active.connection.isOpen;
    return serves ? 'serving' : 'taking over';
  }

  function stopTimers(): void {
    isOver = true;
    later?.[Symbol.dispose]();
    watchdog[Symbol.dispose]();
  }

  const watchdog = createWatchdog(held.journal, clock, {
    isDying: () => workers.active?.isDying() === true,
    checked: (hangs) => {
      changed();
      if (!hangs || workers.active === undefined || isFrozen) return;
      log.warn('a data path hangs', { pid: workers.active.about?.pid });
      void workers.active.end();
    },
  });
  const upgrades = createUpgrades({
    ...{ workers, held, clock, log, launch, reconcile, retire },
    isOver: () => isOver || isFrozen,
  });
  if (options.serving !== undefined) {
    const { child, about } = options.serving;
    const events = { changed: workerChanged, stopped: workerStopped, said: workerSaid, lost: workerLost };
    workers.active = createWorker({ child, program: workers.program, clock, events, serving: about });
  }
  reconcile();

  return {
    get state() {
      return {
        ...{ doing: doing(), active: summary(workers.active), standby: summary(workers.standby), report, takeovers },
        ...{ mounts: held.mounts.size, sockets: held.sockets.size, deaths: recentDeaths().length },
        isBorrowed: workers.active?.isOwn === false,
      };
    },
    get isEmpty() {
      return workers.active === undefined;
    },
    add: (mount) => {
      held.addMount(mount);
      workers.active?.connection.send({ kind: 'add', mounts: [{ mount: mount.id, spec: mount.spec }] }, [mount.fd]);
      reconcile();
    },
    remove,
    flush: async (id, ms, signal) => (held.mounts.has(id) ? await flushes.ask(id, ms, signal) : 0),
    upgrade: upgrades.upgrade,
    move: (to) => {
      const { active } = workers;
      if (active === undefined || !active.connection.isOpen) return undefined;
      active.connection.send({ kind: 'moveTo', path: to });
      return () => active === workers.active && active.connection.isOpen;
    },
    freeze: () => {
      isFrozen = true;
      return {
        [Symbol.dispose]: () => {
          isFrozen = false;
          reconcile();
        },
      };
    },
    release: () => {
      stopTimers();
      if (workers.standby !== undefined) void retire(workers.standby);
      if (workers.active === undefined) return;
      retired.add(workers.active);
      workers.active.connection.close();
    },
    end: async (signal) => {
      stopTimers();
      const all = [workers.active, workers.standby].filter((worker) => worker !== undefined);
      for (const worker of all) retired.add(worker);
      if (workers.active !== undefined) await stopWorker(workers.active, clock, log, signal);
      await Promise.all(all.map((worker) => worker.end()));
    },
  };
}

function summary(worker: Worker | undefined): KeeperState['active'] {
  return worker?.about === undefined ? null : { ...worker.about, ready: worker.isReady && !worker.isEnding };
}
