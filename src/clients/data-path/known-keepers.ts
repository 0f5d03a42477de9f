import { readdir } from 'node:fs/promises';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { createKeyedLock, type KeyedLock } from '#base/keyed-lock.ts';
import type { Log } from '#base/log.ts';
import { createDescriptorCopies, type DescriptorCopies } from '#keeper/descriptor-copies.ts';
import { connectKeeper, type KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError, type KeeperState, outOfReach } from '#keeper/protocol.ts';
import { isServed } from '#keeper/serving-lock.ts';
import { shareDescriptors } from './descriptor-sharing.ts';
import { createKeeperLiveness, type KeeperLiveness } from './keeper-liveness.ts';
import type { KeeperStarter } from './keeper-starter.ts';

/** A keeper that is in use, or may exist. */
export interface KnownKeeper {
  readonly name: string;
  client: KeeperClient | undefined;
  /** It did not answer, and could not be killed. */
  isOutOfReach: boolean;
  answers: KeeperLiveness | undefined;
  /** Copies of its descriptors, if it may be killed together with all its processes. */
  readonly copies: DescriptorCopies | undefined;
  state: KeeperState | undefined;
  users: number;
  idleRounds: number;
  /** Since when it has mounts but no serving data path. */
  troubledSince: number | undefined;
  /** The timer that ends the keeper if that lasts. */
  ending: Disposable | undefined;
}

/** A keeper that was ended together with its mounts because it could not recover. */
export interface GivenUp {
  readonly keeper: string;
  readonly why: string;
  /** Undefined: the keeper did not answer. */
  readonly mounts: readonly string[] | undefined;
}

export interface KnownKeepersOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
  readonly stuckMs: number;
  /** How long copies are held without a keeper to give them to. */
  readonly aloneMs: number;
  readonly starting: KeeperStarter;
  readonly doubted: () => void;
  readonly gaveUp: (what: GivenUp) => void;
}

export interface KnownKeepers extends Disposable {
  of(name: string): KnownKeeper;
  /** Held while a keeper of that name is started, connected to or ended. */
  readonly opening: KeyedLock;
  /** Undefined: nobody listens on its socket. */
  connect(slot: KnownKeeper): Promise<KeeperClient | undefined>;
  /** All running keepers, in use by this process or not. If a data path has lost its keeper, starts another keeper. */
  running(signal: AbortSignal): Promise<readonly KnownKeeper[]>;
  /** The keeper of that name. Undefined: it does not run. */
  runningOf(name: string, signal: AbortSignal): Promise<KnownKeeper | undefined>;
  /** Drops the connection: the next one may be to another keeper. */
  forget(slot: KnownKeeper): void;
  /** Throws soon if the keeper does not answer. */
  mountsOf(slot: KnownKeeper, signal: AbortSignal): Promise<readonly string[]>;
  isStuck(slot: KnownKeeper): boolean;
  /** Throws if the keeper does not answer and can be killed only from its own container. */
  checkReach(slot: KnownKeeper): void;
}

/** Longer than a new keeper waits for a data path that has lost its keeper. */
const listMs = 6_000;
const endMs = 10_000;
/** Longer than a keeper waits for a data path that has lost its keeper. */
const shareMs = 10_000;
const regainMs = { shortest: 20, longest: 500 } as const;

const newSlot = (name: string, copies: DescriptorCopies | undefined): KnownKeeper => ({
  name,
  client: undefined,
  answers: undefined,
  state: undefined,
  users: 0,
  idleRounds: 0,
  troubledSince: undefined,
  ending: undefined,
  isOutOfReach: false,
  copies,
});

/** Undefined: no keeper listens there. */
function connected(how: Parameters<typeof connectKeeper>[0]): KeeperClient | undefined {
  try {
    return connectKeeper(how);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ECONNREFUSED')) return undefined;
    throw cause;
  }
}

export function createKnownKeepers(options: KnownKeepersOptions): KnownKeepers {
  const { clock, log, folder, version, stuckMs, aloneMs, starting, doubted, gaveUp } = options;
  const slots = new Map<string, KnownKeeper>();
  const opening = createKeyedLock();
  const closing = new AbortController();

  const of = (name: string): KnownKeeper => {
    const slot = slots.get(name) ?? newSlot(name, starting.areFound ? createDescriptorCopies() : undefined);
    slots.set(name, slot);
    return slot;
  };

  const isStuck = ({ troubledSince }: KnownKeeper): boolean =>
    troubledSince !== undefined && clock.elapsed() - troubledSince > stuckMs;

  function forget(slot: KnownKeeper): void {
    [slot.client, slot.answers, slot.state, slot.isOutOfReach] = [undefined, undefined, undefined, false];
    calm(slot);
  }

  function calm(slot: KnownKeeper): void {
    slot.ending?.[Symbol.dispose]();
    [slot.troubledSince, slot.ending] = [undefined, undefined];
  }

  function watch(slot: KnownKeeper, client: KeeperClient, { mounts, active }: KeeperState): void {
    if (mounts === 0 || active?.ready === true) calm(slot);
    else if (slot.troubledSince === undefined) {
      slot.troubledSince = clock.elapsed();
      endLater(slot, client);
    }
  }

  function endLater(slot: KnownKeeper, client: KeeperClient, isTold = false): void {
    slot.ending = clock.after(stuckMs + 1_000, () => {
      if (slot.client === client && isStuck(slot) && !closing.signal.aborted) void end(slot, client, isTold);
    });
  }

  /** Ends the keeper with all its mounts: whatever it holds would only block the next data path, too. */
  async function end(slot: KnownKeeper, client: KeeperClient, isTold: boolean): Promise<void> {
    const why = 'no data path serves any more';
    log.error(`${why}: ending the keeper and remounting its volumes`, { keeper: slot.name });
    const mounts = await mountsOf(slot, closing.signal).catch(() => undefined);
    slot.copies?.drop();
    using limit = clock.deadline(endMs, closing.signal);
    try {
      await client.end(limit.signal);
    } catch (cause) {
      if (closing.signal.aborted) return;
      log.warn('a keeper could not be ended, and is killed', { keeper: slot.name, why: String(cause) });
      if (!(await killed(slot, client))) unkillable(slot);
    }
    if (!isTold) gaveUp({ keeper: slot.name, why, mounts });
    // Usually the closed connection triggers this. If the keeper lives on, at least the mounts known here are repaired.
    doubted();
    if (slot.client === client) endLater(slot, client, true);
  }

  async function kill(slot: KnownKeeper, client: KeeperClient): Promise<void> {
    const why = 'the keeper does not answer any more';
    log.error(`${why}, and is killed`, { keeper: slot.name });
    if (await killed(slot, client)) gaveUp({ keeper: slot.name, why, mounts: undefined });
    else unkillable(slot);
  }

  /** Kills the keeper directly, or through the container engine that started it. */
  async function killed(slot: KnownKeeper, client: KeeperClient): Promise<boolean> {
    if (client.kill()) return true;
    return await starting.kill(slot.name).catch((cause: unknown) => {
      log.warn('a keeper could not be killed by its container engine', { keeper: slot.name, why: String(cause) });
      return false;
    });
  }

  function unkillable(slot: KnownKeeper): void {
    slot.isOutOfReach = true;
    log.error('a keeper could not be killed from here: restart the container that it runs in', { keeper: slot.name });
  }

  function checkReach({ answers, isOutOfReach }: KnownKeeper): void {
    if (isOutOfReach && answers?.isSilent === true) throw outOfReach('the keeper does not answer');
  }

  async function connect(slot: KnownKeeper): Promise<KeeperClient | undefined> {
    const user = await starting.user();
    const { copies } = slot;
    let said: KeeperState | undefined;
    const heard = (state: KeeperState): void => {
      said = state;
      // Ignore the state of a keeper that was replaced meanwhile.
      if (client === undefined || slot.client !== client) return;
      const hasLost = state.mounts < (slot.state?.mounts ?? 0);
      slot.state = state;
      watch(slot, client, state);
      if (hasLost && !closing.signal.aborted) doubted();
    };
    const closed = (): void => gone(slot, client, answers);
    const path = starting.socketOf(slot.name);
    const client = connected({ user, copies, changed: heard, closed, path, clock, version });
    if (client === undefined) return undefined;
    const answers = createKeeperLiveness({ clock, status: client.status, hangs: () => void kill(slot, client) });
    if (copies !== undefined) await share(slot, client, copies);
    [slot.client, slot.answers] = [client, answers];
    if (said !== undefined) heard(said);
    return client;
  }

  async function share(slot: KnownKeeper, client: KeeperClient, copies: DescriptorCopies): Promise<void> {
    using limit = clock.deadline(shareMs, closing.signal);
    try {
      await shareDescriptors(client, copies, { keeper: slot.name, log }, limit.signal);
    } catch (cause) {
      client[Symbol.dispose]();
      throw cause;
    }
  }

  function gone(slot: KnownKeeper, client: KeeperClient | undefined, answers: KeeperLiveness): void {
    answers[Symbol.dispose]();
    if (slot.client !== client) return;
    forget(slot);
    if (closing.signal.aborted) return;
    log.warn('a keeper is gone', { keeper: slot.name });
    if ((slot.copies?.mounts.length ?? 0) > 0) void regain(slot);
    else doubted();
  }

  /** Users of the mounts wait meanwhile. If no keeper comes, they get an error, and the mounts are made again. */
  async function regain(slot: KnownKeeper): Promise<void> {
    const since = clock.elapsed();
    const isWaiting = (): boolean => slot.client === undefined && (slot.copies?.mounts.length ?? 0) > 0;
    for (let ms: number = regainMs.shortest; isWaiting(); ms = Math.min(regainMs.longest, ms * 2)) {
      if (closing.signal.aborted) return;
      if (clock.elapsed() - since > aloneMs) {
        log.error('no keeper came: giving up its mounts and remounting their volumes', { keeper: slot.name });
        slot.copies?.drop();
      } else await tryAgain(slot, ms).catch(() => undefined);
    }
    doubted();
  }

  async function tryAgain(slot: KnownKeeper, ms: number): Promise<void> {
    await clock.sleep(ms, closing.signal);
    using _ = await opening.hold([slot.name], closing.signal);
    if (slot.client !== undefined) return;
    await connect(slot).catch((cause: unknown) =>
      log.warn('a keeper does not take what it had', { keeper: slot.name, why: String(cause) }),
    );
  }

  /** If the keeper is gone, a data path that lives keeps serving, and waits for another keeper to take over. */
  async function connectAgain(slot: KnownKeeper, signal: AbortSignal): Promise<boolean> {
    if (slot.client !== undefined || (await connect(slot)) !== undefined) return true;
    if (!isServed(starting.socketOf(slot.name))) return false;
    log.info('a data path has lost its keeper, and gets another', { keeper: slot.name });
    await starting.again(slot.name, signal);
    return (await connect(slot)) !== undefined;
  }

  async function runningOf(name: string, signal: AbortSignal): Promise<KnownKeeper | undefined> {
    const slot = of(name);
    // A connected keeper is returned without the lock, so that nobody waits for an upgrade.
    if (slot.client !== undefined) return slot;
    using _ = await opening.hold([name], signal);
    try {
      const isThere = (await connectAgain(slot, signal)) || (slot.copies?.mounts.length ?? 0) > 0;
      return isThere ? slot : undefined;
    } catch (cause) {
      log.warn('a keeper does not answer', { keeper: name, why: String(cause) });
      return slot;
    }
  }

  async function mountsOf(slot: KnownKeeper, signal: AbortSignal): Promise<readonly string[]> {
    const { client, answers, copies } = slot;
    checkReach(slot);
    // These mounts wait for the next keeper.
    if (client === undefined && copies !== undefined && copies.mounts.length > 0) return copies.mounts;
    if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
    if (answers?.isSilent === true) throw new KeeperError('silent', 'the keeper does not answer');
    using limit = clock.deadline(listMs, signal);
    try {
      return await client.list(limit.signal);
    } catch (cause) {
      if (cause instanceof DeadlineExceeded) answers?.ask();
      throw cause;
    }
  }

  return {
    of,
    opening,
    connect,
    forget,
    runningOf,
    mountsOf,
    isStuck,
    checkReach,
    running: async (signal) => {
      const names = (await readdir(folder).catch(() => [])).filter(
        (name) => /^(host|net-)/.test(name) && !name.includes('.'),
      );
      return (await Promise.all(names.map((name) => runningOf(name, signal)))).filter((slot) => slot !== undefined);
    },
    [Symbol.dispose]: () => {
      closing.abort();
      for (const { client, copies } of slots.values()) {
        client?.[Symbol.dispose]();
        copies?.[Symbol.dispose]();
      }
    },
  };
}
