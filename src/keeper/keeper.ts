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
  connected(connection: Connection): void;
  /** Resolves when the process may exit: no mount needs it. */
  readonly outcome: Promise<'ended' | 'handed over' | 'refused' | 'out of reach'>;
}

const helloMs = 5_000;
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
  const { promise: outcome, resolve: finish } = Promise.withResolvers<Awaited<Keeper['outcome']>>();
  const { promise: inChargeOnce, resolve: resolveCharge } = Promise.withResolvers<void>();
  let charge: ActiveKeeper | undefined;
  let isMoving = false;
  let handover: HandOver | undefined;

  function state(): KeeperState {
    if (charge === undefined) return initialState;
    const now = { ...charge.supervisor.state, shares: true };
    return isMoving ? { ...now, doing: 'moving' } : now;
  }

  function changed(): void {
    if (agents.sendState(state())) handover?.check();
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
    charge = { supervisor, held };
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
        isCurrent: () => charge?.supervisor === supervisor,
      });
  }

  const begin = (): void => {
    if (charge === undefined) takeCharge(createHeldDescriptors(createJournal()), false, undefined);
  };

  /** Gives a live data path time to find this keeper. */
  function waitForDataPath(): void {
    publishSocket();
    clock.after(dataPathWaitMs, begin);
  }

  /** A data path has transferred everything that it serves. */
  async function offered(transferred: TransferredDataPath): Promise<void> {
    if (charge !== undefined) {
      if (charge.held.mounts.size > 0 || isMoving) return transferred.refuse('occupied');
      await giveUp(charge);
    }
    transferred.welcome();
    takeCharge(transferred.held, true, transferred.serving);
  }

  /** Drops an empty set of descriptors, to be replaced by another one. */
  async function giveUp({ supervisor, held }: ActiveKeeper): Promise<void> {
    charge = undefined;
    await supervisor.end(signal);
    held[Symbol.dispose]();
  }

  /**
   * An agent restores what the previous keeper held, which was killed together with its data path. If that data path
   * were alive, two would serve the same mounts; it keeps the serving lock until it exits.
   */
  async function restore(everything: HeldDescriptors): Promise<void> {
    try {
      const before = await inCharge();
      if (before.held.mounts.size > 0) throw new KeeperError('occupied', 'the keeper already has mounts');
      if (options.isServed()) throw new KeeperError('served', 'a live data path serves these mounts');
      await giveUp(before);
    } catch (cause) {
      everything[Symbol.dispose]();
      throw cause;
    }
    log.info('restored the mounts that an agent held', { mounts: everything.mounts.size });
    takeCharge(everything, true, undefined);
  }

  async function inCharge(): Promise<ActiveKeeper> {
    await inChargeOnce;
    if (isMoving || charge === undefined) throw new KeeperError('moving', 'the keeper is being replaced');
    return charge;
  }

  function share(connection: Connection): void {
    if (charge === undefined) throw new KeeperError('moving', 'the keeper is being replaced');
    agents.share(connection, charge.held);
  }

  async function end(until: AbortSignal): Promise<void> {
    const { supervisor, held } = await inCharge();
    await supervisor.end(until);
    held[Symbol.dispose]();
    // Stop listening before replying: a client that connects then must not take an ended keeper for a live one.
    options.stopListening();
  }

  function beginHandover(connection: Connection): void {
    const begun = handOver(connection, {
      clock,
      log,
      charge: () => (isMoving ? undefined : charge),
      begun: () => {
        isMoving = true;
        handover = begun;
        changed();
      },
      ended: (given) => {
        if (given) return finish('handed over');
        isMoving = false;
        handover = undefined;
        changed();
      },
    });
  }

  function introduced(connection: Connection, { role, pid, version }: MessageOf<'hello'>, descriptors: number[]): void {
    if (role === 'data path') {
      const child = { connection, ...processOf(descriptors[0] ?? -1) };
      descriptors.shift();
      receiveTransfer({
        child,
        info: { pid, version },
        clock,
        offered: (transferred) =>
          takeover?.isOver === false ? takeover.offered(transferred) : void offered(transferred),
      });
    } else if (role === 'keeper') beginHandover(connection);
    else {
      agents.add(connection);
      serveAgent(connection, {
        clock,
        log,
        inCharge,
        state,
        end,
        ended: () => finish('ended'),
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
          refused: () => finish('refused'),
          outOfReach: () => finish('out of reach'),
        });
  if (predecessor === undefined && options.isServed()) waitForDataPath();
  else if (predecessor === undefined) begin();

  return {
    get state() {
      return state();
    },
    outcome,
    connected: (connection) => {
      const helloTimer = clock.after(helloMs, () => connection.close());
      connection.handle({
        accepts: ['hello'],
        message: (hello, descriptors) => {
          helloTimer[Symbol.dispose]();
          introduced(connection, hello, descriptors);
        },
        closed: () => helloTimer[Symbol.dispose](),
      });
    },
  };
}
