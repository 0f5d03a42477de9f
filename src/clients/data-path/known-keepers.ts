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
  liveness: KeeperLiveness | undefined;
  /** Copies of its descriptors, if it may be killed together with all its processes. */
  readonly copies: DescriptorCopies | undefined;
  state: KeeperState | undefined;
  users: number;
  idleRounds: number;
  /** Since when it has mounts but no serving data path. */
  troubledSince: number | undefined;
  /** The timer that ends the keeper if that lasts. */
  endTimer: Disposable | undefined;
}

/** A keeper that was ended together with its mounts because it could not recover. */
export interface AbandonedKeeper {
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
  readonly keeperWaitMs: number;
  readonly starter: KeeperStarter;
  readonly onMountsLost: () => void;
  readonly onAbandoned: (what: AbandonedKeeper) => void;
}

export interface KnownKeepers extends Disposable {
  of(name: string): KnownKeeper;
  /** Held while a keeper of that name is started, connected to or ended. */
  readonly opening: KeyedLock;
  /** Undefined: nobody listens on its socket. */
  connect(keeper: KnownKeeper): Promise<KeeperClient | undefined>;
  /** All running keepers, in use by this process or not. If a data path has lost its keeper, starts another keeper. */
  running(signal: AbortSignal): Promise<readonly KnownKeeper[]>;
  /** The keeper of that name. Undefined: it does not run. */
  runningOf(name: string, signal: AbortSignal): Promise<KnownKeeper | undefined>;
  /** Drops the connection: the next one may be to another keeper. */
  forget(keeper: KnownKeeper): void;
  /** Throws soon if the keeper does not answer. */
  mountsOf(keeper: KnownKeeper, signal: AbortSignal): Promise<readonly string[]>;
  isStuck(keeper: KnownKeeper): boolean;
  /** Throws if the keeper does not answer and can be killed only from its own container. */
  checkReach(keeper: KnownKeeper): void;
}

/** Longer than a new keeper waits for a data path that has lost its keeper. */
const listMs = 6_000;
const endMs = 10_000;
/** Longer than a keeper waits for a data path that has lost its keeper. */
const shareMs = 10_000;
const reconnectMs = { shortest: 20, longest: 500 } as const;

const newKeeper = (name: string, copies: DescriptorCopies | undefined): KnownKeeper => ({
  name,
  client: undefined,
  liveness: undefined,
  state: undefined,
  users: 0,
  idleRounds: 0,
  troubledSince: undefined,
  endTimer: undefined,
  isOutOfReach: false,
  copies,
});

/** Undefined: no keeper listens there. */
function connected(options: Parameters<typeof connectKeeper>[0]): KeeperClient | undefined {
  try {
    return connectKeeper(options);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ECONNREFUSED')) return undefined;
    throw cause;
  }
}

export function createKnownKeepers(options: KnownKeepersOptions): KnownKeepers {
  const { clock, log, folder, version, stuckMs, keeperWaitMs, starter, onMountsLost, onAbandoned } = options;
  const known = new Map<string, KnownKeeper>();
  const opening = createKeyedLock();
  const closing = new AbortController();

  const of = (name: string): KnownKeeper => {
    const keeper = known.get(name) ?? newKeeper(name, starter.areExternal ? createDescriptorCopies() : undefined);
    known.set(name, keeper);
    return keeper;
  };

  const isStuck = ({ troubledSince }: KnownKeeper): boolean =>
    troubledSince !== undefined && clock.elapsed() - troubledSince > stuckMs;

  function forget(keeper: KnownKeeper): void {
    [keeper.client, keeper.liveness, keeper.state, keeper.isOutOfReach] = [undefined, undefined, undefined, false];
    clearTrouble(keeper);
  }

  function clearTrouble(keeper: KnownKeeper): void {
    keeper.endTimer?.[Symbol.dispose]();
    [keeper.troubledSince, keeper.endTimer] = [undefined, undefined];
  }

  function watch(keeper: KnownKeeper, client: KeeperClient, { mounts, active }: KeeperState): void {
    if (mounts === 0 || active?.ready === true) clearTrouble(keeper);
    else if (keeper.troubledSince === undefined) {
      keeper.troubledSince = clock.elapsed();
      endLater(keeper, client);
    }
  }

  function endLater(keeper: KnownKeeper, client: KeeperClient, isReported = false): void {
    keeper.endTimer = clock.after(stuckMs + 1_000, () => {
      if (keeper.client === client && isStuck(keeper) && !closing.signal.aborted) void end(keeper, client, isReported);
    });
  }

  /** Ends the keeper with all its mounts: whatever it holds would only block the next data path, too. */
  async function end(keeper: KnownKeeper, client: KeeperClient, isReported: boolean): Promise<void> {
    const why = 'no data path serves any more';
    log.error(`${why}: ending the keeper and remounting its volumes`, { keeper: keeper.name });
    const mounts = await mountsOf(keeper, closing.signal).catch(() => undefined);
    keeper.copies?.drop();
    using limit = clock.deadline(endMs, closing.signal);
    try {
      await client.end(limit.signal);
    } catch (cause) {
      if (closing.signal.aborted) return;
      log.warn('a keeper could not be ended, and is killed', { keeper: keeper.name, why: String(cause) });
      if (!(await killed(keeper, client))) markUnreachable(keeper);
    }
    if (!isReported) onAbandoned({ keeper: keeper.name, why, mounts });
    // Usually the closed connection triggers this. If the keeper lives on, at least the mounts known here are repaired.
    onMountsLost();
    if (keeper.client === client) endLater(keeper, client, true);
  }

  async function kill(keeper: KnownKeeper, client: KeeperClient): Promise<void> {
    const why = 'the keeper does not answer any more';
    log.error(`${why}, and is killed`, { keeper: keeper.name });
    if (await killed(keeper, client)) onAbandoned({ keeper: keeper.name, why, mounts: undefined });
    else markUnreachable(keeper);
  }

  /** Kills the keeper directly, or through the container engine that started it. */
  async function killed(keeper: KnownKeeper, client: KeeperClient): Promise<boolean> {
    if (client.kill()) return true;
    return await starter.kill(keeper.name).catch((cause: unknown) => {
      log.warn('a keeper could not be killed by its container engine', { keeper: keeper.name, why: String(cause) });
      return false;
    });
  }

  function markUnreachable(keeper: KnownKeeper): void {
    keeper.isOutOfReach = true;
    log.error('a keeper could not be killed from here: restart the container that it runs in', { keeper: keeper.name });
  }

  function checkReach({ liveness, isOutOfReach }: KnownKeeper): void {
    if (isOutOfReach && liveness?.isSilent === true) throw outOfReach('the keeper does not answer');
  }

  async function connect(keeper: KnownKeeper): Promise<KeeperClient | undefined> {
    const user = await starter.user();
    const { copies } = keeper;
    let lastState: KeeperState | undefined;
    const stateChanged = (state: KeeperState): void => {
      lastState = state;
      // Ignore the state of a keeper that was replaced meanwhile.
      if (client === undefined || keeper.client !== client) return;
      const hasLost = state.mounts < (keeper.state?.mounts ?? 0);
      keeper.state = state;
      watch(keeper, client, state);
      if (hasLost && !closing.signal.aborted) onMountsLost();
    };
    const closed = (): void => connectionClosed(keeper, client, liveness);
    const path = starter.socketOf(keeper.name);
    const client = connected({ user, copies, changed: stateChanged, closed, path, clock, version });
    if (client === undefined) return undefined;
    const liveness = createKeeperLiveness({ clock, status: client.status, onHang: () => void kill(keeper, client) });
    if (copies !== undefined) await share(keeper, client, copies);
    [keeper.client, keeper.liveness] = [client, liveness];
    if (lastState !== undefined) stateChanged(lastState);
    return client;
  }

  async function share(keeper: KnownKeeper, client: KeeperClient, copies: DescriptorCopies): Promise<void> {
    using limit = clock.deadline(shareMs, closing.signal);
    try {
      await shareDescriptors(client, copies, { keeper: keeper.name, log }, limit.signal);
    } catch (cause) {
      client[Symbol.dispose]();
      throw cause;
    }
  }

  function connectionClosed(keeper: KnownKeeper, client: KeeperClient | undefined, liveness: KeeperLiveness): void {
    liveness[Symbol.dispose]();
    if (keeper.client !== client) return;
    forget(keeper);
    if (closing.signal.aborted) return;
    log.warn('a keeper is gone', { keeper: keeper.name });
    if ((keeper.copies?.mounts.length ?? 0) > 0) void reconnectUntilTimeout(keeper);
    else onMountsLost();
  }

  /** Users of the mounts wait meanwhile. If no keeper comes, they get an error, and the mounts are made again. */
  async function reconnectUntilTimeout(keeper: KnownKeeper): Promise<void> {
    const since = clock.elapsed();
    const isWaiting = (): boolean => keeper.client === undefined && (keeper.copies?.mounts.length ?? 0) > 0;
    for (let ms: number = reconnectMs.shortest; isWaiting(); ms = Math.min(reconnectMs.longest, ms * 2)) {
      if (closing.signal.aborted) return;
      if (clock.elapsed() - since > keeperWaitMs) {
        log.error('no keeper came: giving up its mounts and remounting their volumes', { keeper: keeper.name });
        keeper.copies?.drop();
      } else await tryReconnect(keeper, ms).catch(() => undefined);
    }
    onMountsLost();
  }

  async function tryReconnect(keeper: KnownKeeper, ms: number): Promise<void> {
    await clock.sleep(ms, closing.signal);
    using _ = await opening.hold([keeper.name], closing.signal);
    if (keeper.client !== undefined) return;
    await connect(keeper).catch((cause: unknown) =>
      log.warn('a keeper does not take what it had', { keeper: keeper.name, why: String(cause) }),
    );
  }

  /** If the keeper is gone, a data path that lives keeps serving, and waits for another keeper to take over. */
  async function connectOrRestart(keeper: KnownKeeper, signal: AbortSignal): Promise<boolean> {
    if (keeper.client !== undefined || (await connect(keeper)) !== undefined) return true;
    if (!isServed(starter.socketOf(keeper.name))) return false;
    log.info('a data path has lost its keeper, and gets another', { keeper: keeper.name });
    await starter.restart(keeper.name, signal);
    return (await connect(keeper)) !== undefined;
  }

  async function runningOf(name: string, signal: AbortSignal): Promise<KnownKeeper | undefined> {
    const keeper = of(name);
    // A connected keeper is returned without the lock, so that nobody waits for an upgrade.
    if (keeper.client !== undefined) return keeper;
    using _ = await opening.hold([name], signal);
    try {
      const isUsable = (await connectOrRestart(keeper, signal)) || (keeper.copies?.mounts.length ?? 0) > 0;
      return isUsable ? keeper : undefined;
    } catch (cause) {
      log.warn('a keeper does not answer', { keeper: name, why: String(cause) });
      return keeper;
    }
  }

  async function mountsOf(keeper: KnownKeeper, signal: AbortSignal): Promise<readonly string[]> {
    const { client, liveness, copies } = keeper;
    checkReach(keeper);
    // These mounts wait for the next keeper.
    if (client === undefined && copies !== undefined && copies.mounts.length > 0) return copies.mounts;
    if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
    if (liveness?.isSilent === true) throw new KeeperError('silent', 'the keeper does not answer');
    using limit = clock.deadline(listMs, signal);
    try {
      return await client.list(limit.signal);
    } catch (cause) {
      if (cause instanceof DeadlineExceeded) liveness?.check();
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
      return (await Promise.all(names.map((name) => runningOf(name, signal)))).filter((keeper) => keeper !== undefined);
    },
    [Symbol.dispose]: () => {
      closing.abort();
      for (const { client, copies } of known.values()) {
        client?.[Symbol.dispose]();
        copies?.[Symbol.dispose]();
      }
    },
  };
}
