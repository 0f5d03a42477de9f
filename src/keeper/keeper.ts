import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { type Arrival, receiveDataPath } from './arrival.ts';
import { attend } from './desk.ts';
import { createEstate, type Estate, sendEstate } from './estate.ts';
import { type HandOver, handOver } from './hand-over.ts';
import type { Line } from './line.ts';
import { KeeperError, type KeeperState, type MessageOf } from './protocol.ts';
import { type Predecessor, succeed } from './succeed.ts';
import { createSupervisor, type Supervisor } from './supervise.ts';
import type { Child } from './worker.ts';

export interface KeeperOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Where keepers are found, now or as soon as this one is in charge. */
  readonly path: string;
  /** The program of a data path. */
  readonly program: string;
  readonly start: (program: string) => Child;
  readonly createJournal: () => number;
  /** The process behind a descriptor that it sent itself. */
  readonly processOf: (pidfd: number) => Omit<Child, 'line'>;
  /** Whether a data path lives that had another keeper, and will look for this one. */
  readonly isServed: () => boolean;
  /** A data path that another keeper started is replaced by one of its own: it ends with the container of that keeper. */
  readonly renews: boolean;
  /** The keeper that is to hand everything over. */
  readonly predecessor: Predecessor | undefined;
  /** It is in charge now: makes it the one that is found at `path`. */
  readonly takeName: () => void;
  /** Lets nobody in any more. */
  readonly closeDoor: () => void;
  /** Ends every wait. */
  readonly signal: AbortSignal;
}

export interface Keeper {
  readonly state: KeeperState;
  /** Somebody connected whose user may. */
  connected(line: Line): void;
  /** The process may end: nothing that somebody needs ends with it. */
  readonly over: Promise<'ended' | 'handed over' | 'refused' | 'out of reach'>;
}

const helloMs = 5_000;
const settleMs = 5_000;
const renewMs = 5_000;
const nothingYet = {
  ...{ active: null, standby: null, mounts: 0, sockets: 0, takeovers: 0, deaths: 0, report: '' },
  ...({ doing: 'settling', shares: true, isBorrowed: false } as const),
};

interface Charge {
  readonly supervisor: Supervisor;
  readonly estate: Estate;
}

export function createKeeper(options: KeeperOptions): Keeper {
  const { clock, log, path, program, start, createJournal, processOf, predecessor, takeName, signal } = options;
  const agents = new Set<Line>();
  /** Those who hold everything, too. */
  const holders = new Set<Line>();
  const { promise: over, resolve: finish } = Promise.withResolvers<Awaited<Keeper['over']>>();
  const { promise: charged, resolve: resolveCharge } = Promise.withResolvers<void>();
  let charge: Charge | undefined;
  let isMoving = false;
  let handover: HandOver | undefined;
  let told = '';

  function state(): KeeperState {
    if (charge === undefined) return nothingYet;
    const now = { ...charge.supervisor.state, shares: true };
    return isMoving ? { ...now, doing: 'moving' } : now;
  }

  function changed(): void {
    const now = state();
    const text = JSON.stringify(now);
    if (text === told) return;
    told = text;
    handover?.look();
    for (const agent of agents) agent.send({ kind: 'state', ask: 0, state: now });
  }

  function takeCharge(estate: Estate, wasServed: boolean, serving: Arrival['serving'] | undefined): void {
    takeName();
    const supervisor = createSupervisor({
      ...{ clock, log, start, program, path, estate, wasServed, serving, changed },
    });
    charge = { supervisor, estate };
    estate.watch((message, descriptors) => {
      for (const holder of holders) holder.send(message, descriptors);
    });
    for (const holder of holders) sendEstate(holder, estate, 'everything');
    log.info('this keeper is in charge', { mounts: estate.mounts.size, serving: serving?.about.pid });
    resolveCharge();
    changed();
    if (options.renews) void renew(supervisor);
  }

  async function renew(supervisor: Supervisor): Promise<void> {
    while (charge?.supervisor === supervisor && supervisor.state.isBorrowed === true && !signal.aborted) {
      await supervisor.upgrade(program, signal).catch(async (cause: unknown) => {
        log.warn('the data path of the keeper before could not be replaced', { cause: String(cause) });
        await clock.sleep(renewMs, signal).catch(() => undefined);
      });
    }
  }

  const begin = (): void => {
    if (charge === undefined) takeCharge(createEstate(createJournal()), false, undefined);
  };

  /** A data path that lives is given the time to find us. */
  function settle(): void {
    takeName();
    clock.after(settleMs, begin);
  }

  /** A data path has given everything that it serves. */
  async function offered(arrival: Arrival): Promise<void> {
    if (charge !== undefined) {
      if (charge.estate.mounts.size > 0 || isMoving) return arrival.refuse('occupied');
      await giveUp(charge);
    }
    arrival.welcome();
    takeCharge(arrival.estate, true, arrival.serving);
  }

  /** Of nothing: another estate takes its place. */
  async function giveUp({ supervisor, estate }: Charge): Promise<void> {
    charge = undefined;
    await supervisor.end(signal);
    estate[Symbol.dispose]();
  }

  /**
   * An agent gives what the keeper before held, which was killed together with its data path. Were that one alive, two would serve the
   * same mounts: it keeps its file locked until its end.
   */
  async function restore(everything: Estate): Promise<void> {
    try {
      const before = await inCharge();
      if (before.estate.mounts.size > 0) throw new KeeperError('occupied', 'the keeper has mounts already');
      if (options.isServed()) throw new KeeperError('served', 'a data path lives that has these mounts');
      await giveUp(before);
    } catch (cause) {
      everything[Symbol.dispose]();
      throw cause;
    }
    log.info('an agent has given everything back', { mounts: everything.mounts.size });
    takeCharge(everything, true, undefined);
  }

  async function inCharge(): Promise<Charge> {
    await charged;
    if (isMoving || charge === undefined) throw new KeeperError('moving', 'the keeper is being replaced');
    return charge;
  }

  function share(line: Line): void {
    if (charge === undefined) throw new KeeperError('moving', 'the keeper is being replaced');
    holders.add(line);
    sendEstate(line, charge.estate, 'everything');
  }

  async function end(until: AbortSignal): Promise<void> {
    const { supervisor, estate } = await inCharge();
    await supervisor.end(until);
    estate[Symbol.dispose]();
    // Before it is told: who connects then must not take a keeper that has ended for one that goes on.
    options.closeDoor();
  }

  function beginHandover(line: Line): void {
    const begun = handOver(line, {
      ...{ clock, log, charge: () => (isMoving ? undefined : charge) },
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

  function introduced(line: Line, { role, pid, version }: MessageOf<'hello'>, descriptors: number[]): void {
    if (role === 'data path') {
      const child = { line, ...processOf(descriptors[0] ?? -1) };
      descriptors.shift();
      receiveDataPath({
        ...{ child, about: { pid, version }, clock },
        offered: (arrival) => (successor?.isOver === false ? successor.offered(arrival) : void offered(arrival)),
      });
    } else if (role === 'keeper') beginHandover(line);
    else {
      agents.add(line);
      attend(line, {
        ...{ clock, log, inCharge, state, end, ended: () => finish('ended') },
        ...{ share, restore },
        closed: (gone) => {
          agents.delete(gone);
          holders.delete(gone);
        },
      });
    }
  }

  const successor =
    predecessor === undefined
      ? undefined
      : succeed(predecessor, {
          ...{ log, takeCharge, settle },
          refused: () => finish('refused'),
          outOfReach: () => finish('out of reach'),
        });
  if (predecessor === undefined && options.isServed()) settle();
  else if (predecessor === undefined) begin();

  return {
    get state() {
      return state();
    },
    over,
    connected: (line) => {
      const late = clock.after(helloMs, () => line.close());
      line.handle({
        accepts: ['hello'],
        message: (hello, descriptors) => {
          late[Symbol.dispose]();
          introduced(line, hello, descriptors);
        },
        closed: () => late[Symbol.dispose](),
      });
    },
  };
}
