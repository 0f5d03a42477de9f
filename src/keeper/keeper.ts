import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { serveAgent } from './agent-connection.ts';
import { createAgents } from './agents.ts';
import type { Connection } from './connection.ts';
import { replaceForeignDataPath } from './foreign-data-path.ts';
import { type HandOver, handOver } from './hand-over.ts';
import { createHeldDescriptors, type HeldDescriptors } from './held-descriptors.ts';
import { KeeperError, type KeeperState, type MessageOf } from './protocol.ts';
import { createSupervisor, type Supervisor } from './supervisor.ts';
import { type Predecessor, takeOver } from './take-over.ts';
import { receiveTransfer, type TransferredDataPath } from './transferred-data-path.ts';
import type { ProcessHandle } from './worker.ts';

export interface KeeperOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** The path where clients find the keeper, once this one is in charge. */
  readonly path: string;
  /** The data path's program. */
  readonly program: string;
  readonly start: (program: string) => ProcessHandle;
  readonly createJournal: () => number;
  /** The process of a pidfd that the process itself sent. */
  readonly processOf: (pidfd: number) => Omit<ProcessHandle, 'connection'>;
  /** Whether a live data path of another keeper exists, which will look for this one. */
  readonly isServed: () => boolean;
  /** Replaces a data path that another keeper started: it would end with that keeper's container. */
  readonly replacesForeignDataPath: boolean;
  /** The keeper to take over from. */
  readonly predecessor: Predecessor | undefined;
  /** Publishes this keeper's socket at `path` once it is in charge. */
  readonly publishSocket: () => void;
  /** Stops accepting connections. */
  readonly stopListening: () => void;
  /** Aborts everything that waits. */
  readonly signal: AbortSignal;
}

export interface Keeper {
  readonly state: KeeperState;
  /** A peer of a permitted user connected. */
  accept(connection: Connection): void;
  /** Resolves when the process may exit: no mount needs it. */
  readonly outcome: Promise<'ended' | 'handed over' | 'refused' | 'out of reach'>;
}

const helloTimeoutMs = 5_000;
const dataPathWaitMs = 5_000;
const initialState = {
  active: null,
  standby: null,
  mounts: 0,
  sockets: 0,
  takeovers: 0,
  deaths: 0,
  report: '',
  ...({ doing: 'settling', shares: true, isBorrowed: false } as const),
};

interface ActiveKeeper {
  readonly supervisor: Supervisor;
  readonly held: HeldDescriptors;
}

export function createKeeper(options: KeeperOptions): Keeper {
  const { clock, log, path, program, start, createJournal, processOf, predecessor, publishSocket, signal } = options;
  const agents = createAgents();
  const { promise: outcome, resolve: resolveOutcome } = Promise.withResolvers<Awaited<Keeper['outcome']>>();
  const { promise: firstCharge, resolve: resolveCharge } = Promise.withResolvers<void>();
  let active: ActiveKeeper | undefined;
  let isMoving = false;
  let handover: HandOver | undefined;

  function state(): KeeperState {
    if (active === undefined) return initialState;
    const now = { ...active.supervisor.state, shares: true };
    return isMoving ? { ...now, doing: 'moving' } : now;
  }

  function changed(): void {
    if (agents.sendState(state())) handover?.afterChange();
  }

  function takeCharge(
    held: HeldDescriptors,
    wasServed: boolean,
    serving: TransferredDataPath['serving'] | undefined,
  ): void {
    publishSocket();
    const supervisor = createSupervisor({
      clock,
      log,
      start,
      program,
      path,
      held,
      wasServed,
      serving,
      changed,
    });
    active = { supervisor, held };
    agents.shareAll(held);
    log.info('this keeper is in charge', { mounts: held.mounts.size, serving: serving?.info.pid });
    resolveCharge();
    changed();
    if (options.replacesForeignDataPath)
      void replaceForeignDataPath(supervisor, {
        program,
        clock,
        log,
        signal,
        isCurrent: () => active?.supervisor === supervisor,
      });
  }

  const takeChargeIfNone = (): void => {
    if (active === undefined) takeCharge(createHeldDescriptors(createJournal()), false, undefined);
  };

  /** Gives a live data path time to find this keeper. */
  function waitForDataPath(): void {
    publishSocket();
    clock.after(dataPathWaitMs, takeChargeIfNone);
  }

  /** A data path has transferred everything that it serves. */
  async function handleTransfer(transferred: TransferredDataPath): Promise<void> {
    if (active !== undefined) {
      if (active.held.mounts.size > 0 || isMoving) return transferred.refuse('occupied');
      await releaseCharge(active);
    }
    transferred.accept();
    takeCharge(transferred.held, true, transferred.serving);
  }

  /** Drops an empty set of descriptors, to be replaced by another one. */
  async function releaseCharge({ supervisor, held }: ActiveKeeper): Promise<void> {
    active = undefined;
    await supervisor.end(signal);
    held[Symbol.dispose]();
  }

  /**
   * An agent restores what the previous keeper held, which was killed together with its data path. If that data path
   * were alive, two would serve the same mounts; it keeps the serving lock until it exits.
   */
  async function restore(everything: HeldDescriptors): Promise<void> {
    try {
      const before = await waitForCharge();
      if (before.held.mounts.size > 0) throw new KeeperError('occupied', 'the keeper already has mounts');
      if (options.isServed()) throw new KeeperError('served', 'a live data path serves these mounts');
      await releaseCharge(before);
    } catch (cause) {
      everything[Symbol.dispose]();
      throw cause;
    }
    log.info('restored the mounts that an agent held', { mounts: everything.mounts.size });
    takeCharge(everything, true, undefined);
  }

  async function waitForCharge(): Promise<ActiveKeeper> {
    await firstCharge;
    if (isMoving || active === undefined) throw new KeeperError('moving', 'the keeper is being replaced');
    return active;
  }

  function share(connection: Connection): void {
    if (active === undefined) throw new KeeperError('moving', 'the keeper is being replaced');
    agents.share(connection, active.held);
  }

  async function end(until: AbortSignal): Promise<void> {
    const { supervisor, held } = await waitForCharge();
    await supervisor.end(until);
    held[Symbol.dispose]();
    // Stop listening before replying: a client that connects then must not take an ended keeper for a live one.
    options.stopListening();
  }

  function beginHandover(connection: Connection): void {
    const newHandover = handOver(connection, {
      clock,
      log,
      activeKeeper: () => (isMoving ? undefined : active),
      onBegin: () => {
        isMoving = true;
        handover = newHandover;
        changed();
      },
      onEnd: (isHandedOver) => {
        if (isHandedOver) return resolveOutcome('handed over');
        isMoving = false;
        handover = undefined;
        changed();
      },
    });
  }

  function handleHello(
    connection: Connection,
    { role, pid, version }: MessageOf<'hello'>,
    descriptors: number[],
  ): void {
    if (role === 'data path') {
      const child = { connection, ...processOf(descriptors[0] ?? -1) };
      descriptors.shift();
      receiveTransfer({
        child,
        info: { pid, version },
        clock,
        offered: (transferred) =>
          takeover?.isOver === false ? takeover.handleTransfer(transferred) : void handleTransfer(transferred),
      });
    } else if (role === 'keeper') beginHandover(connection);
    else {
      agents.add(connection);
      serveAgent(connection, {
        clock,
        log,
        activeKeeper: waitForCharge,
        state,
        end,
        ended: () => resolveOutcome('ended'),
        share,
        restore,
        closed: agents.remove,
      });
    }
  }

  const takeover =
    predecessor === undefined
      ? undefined
      : takeOver(predecessor, {
          log,
          takeCharge,
          waitForDataPath,
          refused: () => resolveOutcome('refused'),
          outOfReach: () => resolveOutcome('out of reach'),
        });
  if (predecessor === undefined && options.isServed()) waitForDataPath();
  else if (predecessor === undefined) takeChargeIfNone();

  return {
    get state() {
      return state();
    },
    outcome,
    accept: (connection) => {
      const helloTimer = clock.after(helloTimeoutMs, () => connection.close());
      connection.handle({
        accepts: ['hello'],
        message: (hello, descriptors) => {
          helloTimer[Symbol.dispose]();
          handleHello(connection, hello, descriptors);
        },
        closed: () => helloTimer[Symbol.dispose](),
      });
    },
  };
}
