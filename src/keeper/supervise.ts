import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { type Estate, type HeldMount, holdSockets, sendEstate } from './estate.ts';
import { createFlushes } from './flushes.ts';
import { createHangWatch } from './hang-watch.ts';
import { createPace } from './pace.ts';
import type { KeeperState, MessageOf } from './protocol.ts';
import { type Crew, createUpgrades, stopWorker } from './upgrade.ts';
import { within } from './waiting.ts';
import { type About, type Child, createWorker, type Worker } from './worker.ts';

export interface SupervisorOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Starts the program of a data path, which then waits for what it is to serve. */
  readonly start: (program: string) => Child;
  readonly program: string;
  /** Where data paths find a keeper when this one is gone. */
  readonly path: string;
  /** Dropped at the end by whoever made it. */
  readonly estate: Estate;
  /** A data path has had the journal already. */
  readonly wasServed: boolean;
  /** One that still serves it. */
  readonly serving: { readonly child: Child; readonly about: About } | undefined;
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
const undisturbedMs = 1_000;
const failing = { deaths: 5, ms: 60_000 } as const;
const goneMs = 2_000;
const neverAborted = new AbortController().signal;

export function createSupervisor(options: SupervisorOptions): Supervisor {
  const { clock, log, start, path, estate, changed } = options;
  const pace = createPace(clock);
  const crew: Crew = { program: options.program, active: undefined, standby: undefined };
  const retired = new WeakSet<Worker>();
  const flushes = createFlushes(clock, (question) => crew.active?.line.send(question));
  let promotedAt = Number.NEGATIVE_INFINITY;
  let { wasServed } = options;
  let takeovers = 0;
  let report = '';
  let deaths: readonly number[] = [];
  let isFrozen = false;
  let isOver = false;
  let later: Disposable | undefined;

  /** Does whatever is to be done now. Called after everything that may have changed that. */
  function settle(): void {
    if (isOver || isFrozen) return;
    if (crew.active === undefined && estate.mounts.size > 0 && crew.standby?.about !== undefined) promote(crew.standby);
    if (crew.standby === undefined) startStandby();
    changed();
  }

  function promote(worker: Worker): void {
    [crew.active, crew.standby] = [worker, undefined];
    promotedAt = clock.elapsed();
    hangWatch.begin();
    if (wasServed) takeovers++;
    sendEstate(worker.line, estate, { kind: 'serve', as: wasServed ? 'successor' : 'first', path });
    wasServed = true;
    flushes.again();
    log.info('a data path has everything', { pid: worker.about?.pid, mounts: estate.mounts.size, takeovers });
  }

  function startStandby(): void {
    const undisturbed = crew.active?.isReady === false ? promotedAt + undisturbedMs - clock.elapsed() : 0;
    const wait = Math.max(undisturbed, pace.wait());
    if (wait > 0) settleLater(wait);
    else crew.standby = launch(crew.program);
  }

  function settleLater(ms: number): void {
    later?.[Symbol.dispose]();
    later = clock.after(ms, settle);
  }

  function launch(program: string): Worker | undefined {
    pace.started();
    try {
      return createWorker({ child: start(program), program, clock, events: { changed: told, stopped, said, lost } });
    } catch (cause) {
      log.error('a data path could not be started', { cause });
      pace.failed();
      settleLater(pace.wait());
      return undefined;
    }
  }

  function told(worker: Worker): void {
    if (worker === crew.active && worker.isReady) pace.succeeded();
    settle();
  }

  /**
   * It does nothing more for the mounts, but what it had begun besides might still reach the journal: the next one begins when it is
   * gone. One that cannot be seen to go (its process is out of reach) is believed after a while.
   */
  function stopped(worker: Worker): void {
    void within(retire(worker), goneMs, clock, neverAborted)
      .catch(() => log.warn('a data path has stopped, and does not end', { pid: worker.about?.pid }))
      .then(() => {
        if (worker === crew.active) crew.active = undefined;
        settle();
      });
  }

  type Said = MessageOf<'holding' | 'letGo' | 'ended' | 'flushed' | 'report'>;
  function said(worker: Worker, message: Said, descriptors: number[]): void {
    // One that has given up may have said more than we had heard by then.
    if (worker !== crew.active) return;
    if (message.kind === 'holding') holdSockets(estate, message, descriptors);
    else if (message.kind === 'letGo') estate.letGo(message.socket);
    else if (message.kind === 'ended') over(worker, message);
    else if (message.kind === 'flushed') flushes.answered(message);
    else report = message.text;
    changed();
  }

  function over(worker: Worker, { mount, unserved }: MessageOf<'ended'>): void {
    if (unserved === true) log.error('a data path cannot serve a mount', { pid: worker.about?.pid, mount });
    if (unserved !== true || !upgrades.refused(worker)) remove(mount);
  }

  function lost(worker: Worker, why: string): void {
    if (retired.has(worker)) return;
    log.warn('a data path is gone', { pid: worker.about?.pid, served: worker === crew.active, why });
    deaths = [...recentDeaths(), clock.elapsed()];
    if (worker === crew.active ? !worker.isReady : worker.about === undefined) pace.failed();
    if (worker === crew.standby) crew.standby = undefined;
    // Two that serve the same mounts would destroy data: only when it is certainly gone may the next one begin.
    void worker.end().then(() => {
      if (worker === crew.active) crew.active = undefined;
      if (crew.active === undefined && estate.mounts.size === 0)
        for (const id of [...estate.sockets.keys()]) estate.letGo(id);
      settle();
    });
    settle();
  }

  const recentDeaths = (): readonly number[] => deaths.filter((at) => at > clock.elapsed() - failing.ms);

  function remove(id: string): void {
    if (estate.dropMount(id)) crew.active?.line.send({ kind: 'remove', mount: id });
    changed();
  }

  /** Ends one whose end is no surprise. */
  function retire(worker: Worker): Promise<void> {
    retired.add(worker);
    return worker.end();
  }

  function doing(): Supervisor['state']['doing'] {
    if (recentDeaths().length >= failing.deaths) return 'failing';
    if (estate.mounts.size === 0) return 'idle';
    const serves = crew.active?.isReady === true && !crew.active.isEnding && crew.active.line.isOpen;
    return serves ? 'serving' : 'taking over';
  }

  function quiet(): void {
    isOver = true;
    later?.[Symbol.dispose]();
    hangWatch[Symbol.dispose]();
  }

  const hangWatch = createHangWatch(estate.journal, clock, {
    isDying: () => crew.active?.isDying() === true,
    looked: (hangs) => {
      changed();
      if (!hangs || crew.active === undefined || isFrozen) return;
      log.warn('a data path hangs', { pid: crew.active.about?.pid });
      void crew.active.end();
    },
  });
  const upgrades = createUpgrades({
    ...{ crew, estate, clock, log, launch, settle, retire },
    isOver: () => isOver || isFrozen,
  });
  if (options.serving !== undefined) {
    const { child, about } = options.serving;
    const events = { changed: told, stopped, said, lost };
    crew.active = createWorker({ child, program: crew.program, clock, events, serving: about });
  }
  settle();

  return {
    get state() {
      return {
        ...{ doing: doing(), active: summary(crew.active), standby: summary(crew.standby), report, takeovers },
        ...{ mounts: estate.mounts.size, sockets: estate.sockets.size, deaths: recentDeaths().length },
        isBorrowed: crew.active?.isOwn === false,
      };
    },
    get isEmpty() {
      return crew.active === undefined;
    },
    add: (mount) => {
      estate.addMount(mount);
      crew.active?.line.send({ kind: 'add', mounts: [{ mount: mount.id, spec: mount.spec }] }, [mount.fd]);
      settle();
    },
    remove,
    flush: async (id, ms, signal) => (estate.mounts.has(id) ? await flushes.ask(id, ms, signal) : 0),
    upgrade: upgrades.upgrade,
    move: (to) => {
      const { active } = crew;
      if (active === undefined || !active.line.isOpen) return undefined;
      active.line.send({ kind: 'moveTo', path: to });
      return () => active === crew.active && active.line.isOpen;
    },
    freeze: () => {
      isFrozen = true;
      return {
        [Symbol.dispose]: () => {
          isFrozen = false;
          settle();
        },
      };
    },
    release: () => {
      quiet();
      if (crew.standby !== undefined) void retire(crew.standby);
      if (crew.active === undefined) return;
      retired.add(crew.active);
      crew.active.line.close();
    },
    end: async (signal) => {
      quiet();
      const all = [crew.active, crew.standby].filter((worker) => worker !== undefined);
      for (const worker of all) retired.add(worker);
      if (crew.active !== undefined) await stopWorker(crew.active, clock, log, signal);
      await Promise.all(all.map((worker) => worker.end()));
    },
  };
}

function summary(worker: Worker | undefined): KeeperState['active'] {
  return worker?.about === undefined ? null : { ...worker.about, ready: worker.isReady && !worker.isEnding };
}
