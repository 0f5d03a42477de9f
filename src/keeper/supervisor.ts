import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { type HeldDescriptors, type HeldMount, holdSockets, sendHeldDescriptors } from './held-descriptors.ts';
import { createPendingFlushes } from './pending-flushes.ts';
import type { KeeperState, MessageOf } from './protocol.ts';
import { createRestartBackoff } from './restart-backoff.ts';
import { createUpgrades, stopWorker, type Workers } from './upgrade.ts';
import { createWatchdog } from './watchdog.ts';
import { withTimeout } from './with-timeout.ts';
import { createWorker, type ProcessHandle, type ProcessInfo, type Worker } from './worker.ts';

export interface SupervisorOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Starts a data path's program, which then waits for `serve`. */
  readonly start: (program: string) => ProcessHandle;
  readonly program: string;
  /** Where data paths find the next keeper when this one is gone. */
  readonly path: string;
  /** The creator disposes of it at the end. */
  readonly held: HeldDescriptors;
  /** A data path already had the journal. */
  readonly wasServed: boolean;
  /** A data path that already serves. */
  readonly serving: { readonly child: ProcessHandle; readonly info: ProcessInfo } | undefined;
  readonly changed: () => void;
}

/** Keeps one data path serving and another one loaded as standby. */
export interface Supervisor {
  readonly state: Omit<KeeperState, 'doing' | 'shares'> & {
    readonly doing: 'idle' | 'serving' | 'taking over' | 'failing';
  };
  /** No data path serves or is being stopped. */
  readonly isEmpty: boolean;
  add(mount: HeldMount): void;
  remove(id: string): void;
  /** Commits written data on the server within the time. Returns the number of files that are still incomplete. */
  flush(id: string, ms: number, signal: AbortSignal): Promise<number>;
  /** Resolves when the new program serves. If it cannot, the old one continues. */
  upgrade(program: string, signal: AbortSignal): Promise<void>;
  /**
   * Tells the data path to transfer everything to another keeper. Undefined: there is none. Else a function that tells
   * whether that data path still lives.
   */
  move(path: string): (() => boolean) | undefined;
  /** Suspends takeovers until disposed. */
  freeze(): Disposable;
  /** Gives up everything without stopping the serving data path. */
  release(): void;
  /** Stops all data paths. */
  end(signal: AbortSignal): Promise<void>;
}

/** Delays the next standby, so that a successor has the CPU to itself until it is ready. */
const standbyDelayMs = 1_000;
const failingThreshold = { deaths: 5, ms: 60_000 } as const;
const exitTimeoutMs = 2_000;
const neverAborts = new AbortController().signal;

type WorkerMessage = MessageOf<'holding' | 'letGo' | 'ended' | 'flushed' | 'report'>;

function createDeathLog(clock: Clock) {
  let times: readonly number[] = [];
  const recent = (): readonly number[] => times.filter((at) => at > clock.elapsed() - failingThreshold.ms);
  return {
    add: (): void => {
      times = [...recent(), clock.elapsed()];
    },
    get recent(): number {
      return recent().length;
    },
  };
}

function activityOf(mounts: number, active: Worker | undefined): Supervisor['state']['doing'] {
  if (mounts === 0) return 'idle';
  return active?.isReady === true && !active.isEnding && active.connection.isOpen ? 'serving' : 'taking over';
}

const summaries = ({ active, standby }: Workers): Pick<Supervisor['state'], 'active' | 'standby'> => ({
  active: summary(active),
  standby: summary(standby),
});

export function createSupervisor(options: SupervisorOptions): Supervisor {
  const { clock, log, start, path, held, changed } = options;
  const backoff = createRestartBackoff(clock);
  const workers: Workers = { program: options.program, active: undefined, standby: undefined };
  const retired = new WeakSet<Worker>();
  const flushes = createPendingFlushes(clock, (request) => workers.active?.connection.send(request));
  let promotedAt = Number.NEGATIVE_INFINITY;
  let { wasServed } = options;
  let takeovers = 0;
  let report = '';
  const deaths = createDeathLog(clock);
  let isFrozen = false;
  let isOver = false;
  let reconcileTimer: Disposable | undefined;

  const events = { changed: workerChanged, stopped: workerStopped, received: handleWorkerMessage, lost: workerLost };

  /** Starts, promotes or schedules data paths as needed. Call after every change. */
  function reconcile(): void {
    if (isOver || isFrozen) return;
    if (workers.active === undefined && held.mounts.size > 0 && workers.standby?.info !== undefined)
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
    log.info('a data path starts serving', { pid: worker.info?.pid, mounts: held.mounts.size, takeovers });
  }

  function startStandby(): void {
    const standbyDelay = workers.active?.isReady === false ? promotedAt + standbyDelayMs - clock.elapsed() : 0;
    const wait = Math.max(standbyDelay, backoff.delayMs());
    if (wait > 0) reconcileLater(wait);
    else workers.standby = launch(workers.program);
  }

  function reconcileLater(ms: number): void {
    reconcileTimer?.[Symbol.dispose]();
    reconcileTimer = clock.after(ms, reconcile);
  }

  function launch(program: string): Worker | undefined {
    backoff.recordStart();
    try {
      return createWorker({ child: start(program), program, clock, events });
    } catch (cause) {
      log.error('failed to start a data path', { cause });
      backoff.recordFailure();
      reconcileLater(backoff.delayMs());
      return undefined;
    }
  }

  function workerChanged(worker: Worker): void {
    if (worker === workers.active && worker.isReady) backoff.recordSuccess();
    reconcile();
  }

  /**
   * A stopped data path does no more work, but a call that it had started could still reach the journal, so the next
   * one starts only when it is gone. If its exit cannot be observed (out of reach), wait a fixed time.
   */
  function workerStopped(worker: Worker): void {
    void withTimeout(retire(worker), exitTimeoutMs, clock, neverAborts)
      .catch(() => log.warn('a data path has stopped but does not exit', { pid: worker.info?.pid }))
      .then(() => {
        if (worker === workers.active) workers.active = undefined;
        reconcile();
      });
  }

  function handleWorkerMessage(worker: Worker, message: WorkerMessage, descriptors: number[]): void {
    // A retired data path may have sent more messages.
    if (worker !== workers.active) return;
    if (message.kind === 'holding') holdSockets(held, message, descriptors);
    else if (message.kind === 'letGo') held.dropSocket(message.socket);
    else if (message.kind === 'ended') endMount(worker, message);
    else if (message.kind === 'flushed') flushes.handleAnswer(message);
    else report = message.text;
    changed();
  }

  function endMount(worker: Worker, { mount, unserved }: MessageOf<'ended'>): void {
    if (unserved === true) log.error('a data path cannot serve a mount', { pid: worker.info?.pid, mount });
    if (unserved !== true || !upgrades.handleRefusal(worker)) remove(mount);
  }

  function workerLost(worker: Worker, why: string): void {
    if (retired.has(worker)) return;
    log.warn('a data path is gone', { pid: worker.info?.pid, served: worker === workers.active, why });
    deaths.add();
    if (worker === workers.active ? !worker.isReady : worker.info === undefined) backoff.recordFailure();
    if (worker === workers.standby) workers.standby = undefined;
    // Two data paths on the same mounts would destroy data: promote the next one only when this one is certainly gone.
    void worker.end().then(() => {
      if (worker === workers.active) workers.active = undefined;
      if (workers.active === undefined && held.mounts.size === 0)
        for (const id of Array.from(held.sockets.keys())) held.dropSocket(id);
      reconcile();
    });
    reconcile();
  }

  function remove(id: string): void {
    if (held.dropMount(id)) workers.active?.connection.send({ kind: 'remove', mount: id });
    changed();
  }

  /** Ends a worker on purpose, so that its end does not count as a death. */
  function retire(worker: Worker): Promise<void> {
    retired.add(worker);
    return worker.end();
  }

  function stopTimers(): void {
    isOver = true;
    reconcileTimer?.[Symbol.dispose]();
    watchdog[Symbol.dispose]();
  }

  const watchdog = createWatchdog(held.journal, clock, {
    isDying: () => workers.active?.isDying() === true,
    checked: (hangs) => {
      changed();
      if (!hangs || workers.active === undefined || isFrozen) return;
      log.warn('a data path hangs', { pid: workers.active.info?.pid });
      void workers.active.end();
    },
  });
  const upgrades = createUpgrades({
    workers,
    held,
    clock,
    log,
    launch,
    reconcile,
    retire,
    isOver: () => isOver || isFrozen,
  });
  if (options.serving !== undefined) {
    const { child, info } = options.serving;
    workers.active = createWorker({ child, program: workers.program, clock, events, serving: info });
  }
  reconcile();

  return {
    get state() {
      return {
        doing: deaths.recent >= failingThreshold.deaths ? 'failing' : activityOf(held.mounts.size, workers.active),
        ...summaries(workers),
        report,
        takeovers,
        mounts: held.mounts.size,
        sockets: held.sockets.size,
        deaths: deaths.recent,
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
    flush: async (id, ms, signal) => (held.mounts.has(id) ? await flushes.flush(id, ms, signal) : 0),
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
      const workersToEnd = [workers.active, workers.standby].filter((worker) => worker !== undefined);
      for (const worker of workersToEnd) retired.add(worker);
      if (workers.active !== undefined) await stopWorker(workers.active, clock, log, signal);
      await Promise.all(workersToEnd.map((worker) => worker.end()));
    },
  };
}

function summary(worker: Worker | undefined): KeeperState['active'] {
  return worker?.info === undefined ? null : { ...worker.info, ready: worker.isReady && !worker.isEnding };
}
