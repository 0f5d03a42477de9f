import { createHash } from 'node:crypto';
import { globSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError, type KeeperState } from '#keeper/protocol.ts';
import { endingMark } from './keeper-container.ts';
import { keeperFailure } from './keeper-errors.ts';
import { answerMs } from './keeper-liveness.ts';
import type { KeeperPlacementOptions } from './keeper-placement.ts';
import { upgradedByKubernetes } from './keeper-pod.ts';
import { createKeeperStarter, type KeeperKind, program, usualKeeper } from './keeper-starter.ts';
import { createKnownKeepers, type GivenUp, type KnownKeeper } from './known-keepers.ts';

export interface UsedKeeper extends KeeperClient {
  /** It has had no serving data path for so long that callers should stop waiting for one. */
  readonly isStuck: boolean;
}

export interface KeeperStatus {
  readonly name: string;
  /** Undefined: the keeper does not answer, or has ended. */
  readonly state: KeeperState | undefined;
}

/** The keepers of this node, each with its data path. They outlive this process. */
export interface Keepers extends AsyncDisposable {
  /** Calls `work` with the keeper for mounts of that kind, and starts it if there is none. */
  use<T>(kind: KeeperKind, signal: AbortSignal, work: (keeper: UsedKeeper) => Promise<T>): Promise<T>;
  /**
   * Calls `work` with the keeper that has the mount: the keeper of that kind, or another one if the store's options have changed since.
   * Undefined: no keeper has it. Throws if the keeper of that kind cannot be asked; failures of the others are ignored.
   */
  holding<T>(
    mount: string,
    kind: KeeperKind,
    signal: AbortSignal,
    work: (keeper: UsedKeeper) => Promise<T>,
  ): Promise<T | undefined>;
  /** The mounts with this prefix that a keeper has, even if they are no longer in the mount table. */
  serving(beginning: string, signal: AbortSignal): Promise<readonly string[]>;
  /** What is wrong with the keeper of that kind. Undefined: nothing, or it does not run. */
  trouble(kind: KeeperKind, signal: AbortSignal): Promise<string | undefined>;
  /** All keepers: those in use, and those that an earlier process started. */
  status(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Replaces keepers and data paths with those of this program's version, while mounts are in use. */
  upgrade(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Ends keepers that have been idle since the last call, and replaces those that run in the wrong place. */
  tidy(signal: AbortSignal): Promise<void>;
  /** Keeper containers were told to stop. Only the engine does that, when it stops all containers. */
  areEnding(): boolean;
  /** Ends idle keepers. */
  endIdle(signal: AbortSignal): Promise<void>;
}

export interface KeepersOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Each keeper has a folder of its own in it. */
  readonly folder: string;
  readonly version: string;
  /** Called when a keeper has ended or lost a mount: the caller should check which mounts are still served. */
  readonly doubted: () => void;
  /** Called when a keeper was ended, with the reason. */
  readonly gaveUp: (what: GivenUp) => void;
  /** The longest time that callers wait for a serving data path. Default: a minute. */
  readonly stuckMs?: number;
  /** If somebody else starts keepers: how long the mounts of a killed keeper wait for the next one. Default: six minutes. */
  readonly aloneMs?: number;
  /** Default: networks are namespaces themselves. */
  readonly find?: FindNamespace;
  /** Default: keepers are processes beside this one. */
  readonly placing?: KeeperPlacementOptions;
}

const idleRounds = 2;
const clearEveryMs = 250;
const clearLooks = 80;
/** A successor takes a fraction of a second to start, and is retried for this long. */
const usualStuckMs = 60_000;
/** Longer than the longest back-off of a kubelet for a container that keeps ending. */
const usualAloneMs = 360_000;

export function createKeepers(options: KeepersOptions): Keepers {
  const { clock, log, folder, version, doubted, gaveUp, stuckMs = usualStuckMs } = options;
  const { aloneMs = usualAloneMs } = options;
  const { find, placing } = options;
  const starting = createKeeperStarter({ clock, log, folder, version, find, placing });
  const { socketOf } = starting;
  /** Marks that are older than this process: a keeper that started again removes its mark, one that did not leaves it. */
  const before = marksIn(folder);
  const slots = createKnownKeepers({ clock, log, folder, version, stuckMs, aloneMs, starting, doubted, gaveUp });
  void starting
    .prepare()
    .catch((cause: unknown) => log.error('keepers have no place to start in', { folder, why: String(cause) }));
  const { opening, connect, running, mountsOf, isStuck } = slots;

  async function reach(slot: KnownKeeper, kind: KeeperKind, signal: AbortSignal): Promise<KeeperClient> {
    using _ = await opening.hold([slot.name], signal);
    const there = slot.client ?? (await connect(slot));
    if (there !== undefined) return there;
    await starting.start(slot.name, kind, signal);
    const started = await connect(slot);
    if (started === undefined) throw new KeeperError('gone', 'the keeper has gone');
    return started;
  }

  async function asked(slot: KnownKeeper, signal: AbortSignal): Promise<KeeperState | undefined> {
    const { client, answers } = slot;
    if (client === undefined || answers?.isSilent === true) return undefined;
    using limit = clock.deadline(answerMs, signal);
    try {
      return await client.status(limit.signal);
    } catch (cause) {
      signal.throwIfAborted();
      if (cause instanceof DeadlineExceeded) answers?.ask();
      return undefined;
    }
  }

  const statusOf = async (slot: KnownKeeper, signal: AbortSignal): Promise<KeeperStatus> => ({
    name: slot.name,
    state: await asked(slot, signal),
  });

  /** The keeper that has the mount. Undefined: none has it. */
  async function holder(mount: string, kind: KeeperKind, signal: AbortSignal): Promise<KnownKeeper | undefined> {
    const has = async (slot: KnownKeeper): Promise<boolean> => (await mountsOf(slot, signal)).includes(mount);
    const look = async (): Promise<readonly [KnownKeeper | undefined, boolean]> => {
      const slot = await slots.runningOf(nameOf(kind), signal);
      return [slot, slot !== undefined && (await has(slot))];
    };
    // A keeper that was just ending has left a data path or nothing; the second look sees which.
    const [own, isIt] = await look().catch((cause: unknown) => {
      if (isGone(cause)) return look();
      throw cause;
    });
    // This is the usual case. The other keepers, and what may be wrong with them, don't matter then.
    if (isIt) return own;
    const others = (await running(signal)).filter((slot) => slot !== own);
    const found = await Promise.all(others.map((slot) => has(slot).catch(() => false)));
    signal.throwIfAborted();
    return others.find((_, at) => found[at]);
  }

  async function endIf(slot: KnownKeeper, isDue: () => boolean, signal: AbortSignal): Promise<void> {
    // Kubernetes would restart it at once.
    if (starting.areFound) return;
    using _ = await opening.hold([slot.name], signal);
    const { client } = slot;
    if (client === undefined || slot.users > 0) return;
    const state = await asked(slot, signal);
    if (state?.mounts !== 0 || slot.users > 0 || !isDue()) return;
    slots.forget(slot);
    await client.end(signal).catch((cause: unknown) => log.warn('a keeper could not be ended', { why: String(cause) }));
    client[Symbol.dispose]();
  }

  /** Keeps the keeper from being ended while it is in use. */
  async function used<T>(
    slot: KnownKeeper,
    signal: AbortSignal,
    client: () => Promise<KeeperClient>,
    work: (keeper: UsedKeeper) => Promise<T>,
  ): Promise<T> {
    slot.users++;
    slot.idleRounds = 0;
    try {
      slots.checkReach(slot);
      return await work({ ...(await client()), isStuck: isStuck(slot) });
    } catch (cause) {
      signal.throwIfAborted();
      throw keeperFailure(cause, dirname(socketOf(slot.name)));
    } finally {
      slot.users--;
    }
  }

  return {
    use: (kind, signal, work) => {
      const slot = slots.of(nameOf(kind));
      const client = async (): Promise<KeeperClient> => {
        // When an engine restarts it creates its networks again; don't make this mount wait for the next maintenance pass.
        if (kind.network !== undefined && slot.client !== undefined) await move(slot, signal);
        return await reach(slot, kind, signal);
      };
      return used(slot, signal, client, work);
    },
    holding: async (mount, kind, signal, work) => {
      const slot = await holder(mount, kind, signal).catch((cause: unknown) => {
        signal.throwIfAborted();
        throw keeperFailure(cause, dirname(socketOf(nameOf(kind))));
      });
      if (slot === undefined) return undefined;
      const client = async (): Promise<KeeperClient> => {
        if (slot.client === undefined) throw new KeeperError('gone', 'the keeper has gone');
        return slot.client;
      };
      return await used(slot, signal, client, work);
    },
    serving: async (beginning, signal) => {
      // A keeper that does not answer is left out: its mounts are made again elsewhere, or hang.
      const each = (await running(signal)).map((slot) => mountsOf(slot, signal).catch((): readonly string[] => []));
      return (await Promise.all(each)).flat().filter((mount) => mount.startsWith(beginning));
    },
    trouble: async (kind, signal) => {
      const slot = await slots.runningOf(nameOf(kind), signal);
      const state = slot && (await asked(slot, signal));
      if (state === undefined) return slot && 'the client that serves the mount does not answer';
      return state.doing === 'failing' ? 'the client that serves the mount dies again and again' : undefined;
    },
    status: async (signal) => Promise.all((await running(signal)).map((slot) => statusOf(slot, signal))),
    upgrade: async (signal) => {
      const all = await running(signal);
      const failures: unknown[] = [];
      // One that cannot be replaced must not keep the others from being replaced.
      for (const slot of all) await replace(slot, signal).catch((cause: unknown) => failures.push(cause));
      if (failures.length > 0) throw failures[0];
      return Promise.all(all.map((slot) => statusOf(slot, signal)));
    },
    tidy: async (signal) => {
      for (const slot of await running(signal)) {
        await endIf(slot, () => ++slot.idleRounds > idleRounds, signal);
        if (slot.client !== undefined) await move(slot, signal);
      }
      await starting.clear(signal);
    },
    areEnding: () => [...marksIn(folder)].some(([mark, madeAt]) => before.get(mark) !== madeAt),
    endIdle: async (signal) => {
      for (const slot of await running(signal)) await endIf(slot, () => true, signal);
      const staying = (await running(signal)).length;
      // A container ends a moment after the processes in it.
      for (let look = 0; look < clearLooks && (await starting.clear(signal)) > staying; look++)
        await clock.sleep(clearEveryMs, signal);
    },
    [Symbol.asyncDispose]: async () => slots[Symbol.dispose](),
  };

  /** Replaces a misplaced keeper with one in its network's current namespace, or in a container of its own. */
  async function move(slot: KnownKeeper, signal: AbortSignal): Promise<void> {
    try {
      if (!(await starting.isMisplaced(slot.name, signal))) return;
      log.info('a data path is replaced, by one where it shall run now', { keeper: slot.name });
      await replace(slot, signal);
    } catch (cause) {
      signal.throwIfAborted();
      log.warn('a data path could not be replaced by one where it shall run now', {
        keeper: slot.name,
        why: String(cause),
      });
    }
  }

  /** Replaces first the keeper, whose successor takes everything over, then its data path. */
  async function replace(slot: KnownKeeper, signal: AbortSignal): Promise<void> {
    try {
      using _ = await opening.hold([slot.name], signal);
      slots.checkReach(slot);
      if (starting.areFound) throw upgradedByKubernetes();
      const before = slot.client;
      await starting.again(slot.name, signal);
      // The predecessor closes its end only later; until then calls would still go to it.
      slots.forget(slot);
      before?.[Symbol.dispose]();
      const client = await connect(slot);
      if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
      // An idle data path is replaced, too: otherwise it would stay in the old container.
      const { mounts, active } = await client.status(signal);
      if (mounts > 0 || active !== null) await client.upgrade(program, signal);
    } catch (cause) {
      signal.throwIfAborted();
      throw keeperFailure(cause, dirname(socketOf(slot.name)));
    }
  }
}

const isGone = (cause: unknown): boolean => cause instanceof KeeperError && cause.reason === 'gone';

/** The name must be short: the length of a socket path is limited. */
export function nameOf({ network, privilegedPorts }: KeeperKind): string {
  const where =
    network === undefined ? usualKeeper : `net-${createHash('sha256').update(network).digest('hex').slice(0, 8)}`;
  return privilegedPorts ? `${where}-low` : where;
}

/** The marks of containers that were told to stop, each with its modification time. */
function marksIn(folder: string): ReadonlyMap<string, number> {
  const marks = globSync(join('*', endingMark), { cwd: folder });
  const stats = marks.map((mark) => [mark, statSync(join(folder, mark), { throwIfNoEntry: false })?.mtimeMs] as const);
  return new Map(stats.flatMap(([mark, madeAt]) => (madeAt === undefined ? [] : [[mark, madeAt] as const])));
}
