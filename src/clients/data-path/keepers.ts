import { createHash } from 'node:crypto';
import { globSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError, type KeeperState } from '#keeper/protocol.ts';
import { answerMs } from './answers.ts';
import { keeperFailure } from './errors.ts';
import { endingMark } from './keeper-container.ts';
import type { PlacingOptions } from './placing.ts';
import { upgradedByKubernetes } from './pod.ts';
import { createSlots, type GivenUp, type Slot } from './slots.ts';
import { createStarting, type KeeperKind, program, usualKeeper } from './starting.ts';

export interface UsedKeeper extends KeeperClient {
  /** It has had no data path that serves for so long that nobody should wait for one any more. */
  readonly isStuck: boolean;
}

export interface KeeperStatus {
  readonly name: string;
  /** Undefined: it does not answer, or has gone. */
  readonly state: KeeperState | undefined;
}

/** The keepers of this node, each with its data path. They outlive this process. */
export interface Keepers extends AsyncDisposable {
  /** With the keeper for such mounts, which is started where there is none. */
  use<T>(kind: KeeperKind, signal: AbortSignal, work: (keeper: UsedKeeper) => Promise<T>): Promise<T>;
  /**
   * With the keeper that has a mount: the one for such mounts, or another where its store says something else by now.
   * Undefined: none has it. Throws where the one for such mounts cannot be asked, whatever is wrong with the others.
   */
  holding<T>(
    mount: string,
    kind: KeeperKind,
    signal: AbortSignal,
    work: (keeper: UsedKeeper) => Promise<T>,
  ): Promise<T | undefined>;
  /** The mounts that begin so and have a keeper, also those that nobody sees here any more. */
  serving(beginning: string, signal: AbortSignal): Promise<readonly string[]>;
  /** What is wrong with the one for such mounts, where it runs. */
  trouble(kind: KeeperKind, signal: AbortSignal): Promise<string | undefined>;
  /** Every keeper there is: those in use, and those that an earlier process left. */
  status(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Replaces keepers and data paths by those that belong to this program, under mounts that are in use. */
  upgrade(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Ends those that have had nothing to do since the last call, and replaces those that run where they should not. */
  tidy(signal: AbortSignal): Promise<void>;
  /** Containers of keepers were told to end, which only their engine does, when it ends all. */
  areEnding(): boolean;
  /** Ends those that have nothing to do. */
  endIdle(signal: AbortSignal): Promise<void>;
}

export interface KeepersOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Each keeper has its own in it. */
  readonly folder: string;
  readonly version: string;
  /** A keeper has gone, or lost a mount: somebody should see what is still served. */
  readonly doubted: () => void;
  /** A keeper was ended, and why. */
  readonly gaveUp: (what: GivenUp) => void;
  /** Nobody waits for longer than this for a data path that serves. Left out: a minute. */
  readonly stuckMs?: number;
  /** So long mounts whose keeper was killed wait for the next one, where that is started by somebody else. Left out: six minutes. */
  readonly aloneMs?: number;
  /** Left out: networks are namespaces themselves. */
  readonly find?: FindNamespace;
  /** Left out: they are processes beside this one. */
  readonly placing?: PlacingOptions;
}

const idleRounds = 2;
const clearEveryMs = 250;
const clearLooks = 80;
/** A successor takes a fraction of a second, and is tried again for as long as this. */
const usualStuckMs = 60_000;
/** Longer than a kubelet lets a container wait that has ended again and again. */
const usualAloneMs = 360_000;

export function createKeepers(options: KeepersOptions): Keepers {
  const { clock, log, folder, version, doubted, gaveUp, stuckMs = usualStuckMs } = options;
  const { aloneMs = usualAloneMs } = options;
  const { find, placing } = options;
  const starting = createStarting({ clock, log, folder, version, find, placing });
  const { socketOf } = starting;
  /** Of an end that was before this start: a keeper that came again takes its mark away, one that did not leaves it. */
  const before = marksIn(folder);
  const slots = createSlots({ clock, log, folder, version, stuckMs, aloneMs, starting, doubted, gaveUp });
  void starting
    .prepare()
    .catch((cause: unknown) => log.error('keepers have no place to start in', { folder, why: String(cause) }));
  const { opening, connect, running, mountsOf, isStuck } = slots;

  async function reach(slot: Slot, kind: KeeperKind, signal: AbortSignal): Promise<KeeperClient> {
    using _ = await opening.hold([slot.name], signal);
    const there = slot.client ?? (await connect(slot));
    if (there !== undefined) return there;
    await starting.start(slot.name, kind, signal);
    const started = await connect(slot);
    if (started === undefined) throw new KeeperError('gone', 'the keeper has gone');
    return started;
  }

  async function asked(slot: Slot, signal: AbortSignal): Promise<KeeperState | undefined> {
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

  const statusOf = async (slot: Slot, signal: AbortSignal): Promise<KeeperStatus> => ({
    name: slot.name,
    state: await asked(slot, signal),
  });

  /** The one that has a mount. Undefined: none has it. */
  async function holder(mount: string, kind: KeeperKind, signal: AbortSignal): Promise<Slot | undefined> {
    const has = async (slot: Slot): Promise<boolean> => (await mountsOf(slot, signal)).includes(mount);
    const look = async (): Promise<readonly [Slot | undefined, boolean]> => {
      const slot = await slots.runningOf(nameOf(kind), signal);
      return [slot, slot !== undefined && (await has(slot))];
    };
    // What one that is just ending leaves, a data path or nothing, is seen at the second look.
    const [own, isIt] = await look().catch((cause: unknown) => {
      if (isGone(cause)) return look();
      throw cause;
    });
    // Usually that is all: the others, and what may be wrong with them, are nobody's business then.
    if (isIt) return own;
    const others = (await running(signal)).filter((slot) => slot !== own);
    const found = await Promise.all(others.map((slot) => has(slot).catch(() => false)));
    signal.throwIfAborted();
    return others.find((_, at) => found[at]);
  }

  async function endIf(slot: Slot, isDue: () => boolean, signal: AbortSignal): Promise<void> {
    // Kubernetes would start it again at once.
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

  /** Nobody ends it meanwhile. */
  async function used<T>(
    slot: Slot,
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
        // An engine's restart makes its networks anew: who mounts something does not wait for the next upkeep.
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
      // Of one that does not answer nothing is known; what it serves is made anew elsewhere, or hangs.
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
      // One that cannot be replaced keeps no other from it.
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
      // A container ends a moment after what ran in it.
      for (let look = 0; look < clearLooks && (await starting.clear(signal)) > staying; look++)
        await clock.sleep(clearEveryMs, signal);
    },
    [Symbol.asyncDispose]: async () => slots[Symbol.dispose](),
  };

  /** By one where its network is, or in a container of its own. */
  async function move(slot: Slot, signal: AbortSignal): Promise<void> {
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

  /** First the keeper, which takes everything over from the one before; then what it serves with. */
  async function replace(slot: Slot, signal: AbortSignal): Promise<void> {
    try {
      using _ = await opening.hold([slot.name], signal);
      slots.checkReach(slot);
      if (starting.areFound) throw upgradedByKubernetes();
      const before = slot.client;
      await starting.again(slot.name, signal);
      // The one before closes its end; until then it would be asked.
      slots.forget(slot);
      before?.[Symbol.dispose]();
      const client = await connect(slot);
      if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
      // One that has nothing to serve is replaced, too: in a container of its own it would keep that.
      const { mounts, active } = await client.status(signal);
      if (mounts > 0 || active !== null) await client.upgrade(program, signal);
    } catch (cause) {
      signal.throwIfAborted();
      throw keeperFailure(cause, dirname(socketOf(slot.name)));
    }
  }
}

const isGone = (cause: unknown): boolean => cause instanceof KeeperError && cause.reason === 'gone';

/** Short: a socket's path has little room. */
export function nameOf({ network, privilegedPorts }: KeeperKind): string {
  const where =
    network === undefined ? usualKeeper : `net-${createHash('sha256').update(network).digest('hex').slice(0, 8)}`;
  return privilegedPorts ? `${where}-low` : where;
}

/** The marks of containers that were told to end, each with the time of its making. */
function marksIn(folder: string): ReadonlyMap<string, number> {
  const marks = globSync(join('*', endingMark), { cwd: folder });
  const stats = marks.map((mark) => [mark, statSync(join(folder, mark), { throwIfNoEntry: false })?.mtimeMs] as const);
  return new Map(stats.flatMap(([mark, madeAt]) => (madeAt === undefined ? [] : [[mark, madeAt] as const])));
}
