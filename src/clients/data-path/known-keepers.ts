import { readdir } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { createKeyedLock, type KeyedLock } from '#base/keyed-lock.ts';
import type { Log } from '#base/log.ts';
import { createDescriptorCopies, type DescriptorCopies } from '#keeper/descriptor-copies.ts';
import { connectKeeper, type KeeperClient } from '#keeper/keeper-client.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { isServed } from '#keeper/serving-lock.ts';
import { shareDescriptors } from './descriptor-sharing.ts';
import { createKeeperLiveness, type KeeperLiveness } from './keeper-liveness.ts';
import { reconnectUntilTimeout } from './keeper-reconnect.ts';
import type { KeeperStarter } from './keeper-starter.ts';
import { type AbandonedKeeper, createKeeperTermination } from './keeper-termination.ts';
import { type KnownKeeper, newKeeper } from './known-keeper.ts';

export interface KnownKeepersOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
  readonly stuckMs: number;
  /** How long to hold the copies while no keeper runs. */
  readonly keeperWaitMs: number;
  readonly starter: KeeperStarter;
  readonly onMountsLost: () => void;
  readonly onAbandoned: (what: AbandonedKeeper) => void;
}

export interface KnownKeepers extends Disposable {
  getOrCreate(name: string): KnownKeeper;
  /** Locks by keeper name: held while a keeper is started, connected or ended. */
  readonly keeperLocks: KeyedLock;
  /** Undefined: no process listens on its socket. */
  connect(keeper: KnownKeeper): Promise<KeeperClient | undefined>;
  /** All running keepers, in use by this process or not. If a data path has lost its keeper, starts another keeper. */
  listRunning(signal: AbortSignal): Promise<readonly KnownKeeper[]>;
  /** The keeper of that name. Undefined: it does not run. */
  findRunning(name: string, signal: AbortSignal): Promise<KnownKeeper | undefined>;
  /** Drops the connection: the next one may be to another keeper. */
  forget(keeper: KnownKeeper): void;
  isStuck(keeper: KnownKeeper): boolean;
}

/** Longer than a keeper waits for a data path that has lost its keeper. */
const shareTimeoutMs = 10_000;

/** Undefined: no keeper listens on the socket. */
function tryConnect(options: Parameters<typeof connectKeeper>[0]): KeeperClient | undefined {
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
  const keeperLocks = createKeyedLock();
  const closing = new AbortController();
  const { signal } = closing;
  const termination = createKeeperTermination({ clock, log, stuckMs, starter, onMountsLost, onAbandoned, signal });

  const getOrCreate = (name: string): KnownKeeper => {
    const keeper = known.get(name) ?? newKeeper(name, starter.areExternal ? createDescriptorCopies() : undefined);
    known.set(name, keeper);
    return keeper;
  };

  function forget(keeper: KnownKeeper): void {
    [keeper.client, keeper.liveness, keeper.state, keeper.isOutOfReach] = [undefined, undefined, undefined, false];
    termination.clearUnserved(keeper);
  }

  async function connect(keeper: KnownKeeper): Promise<KeeperClient | undefined> {
    const user = await starter.user();
    const { copies } = keeper;
    let lastState: KeeperState | undefined;
    const onStateChange = (state: KeeperState): void => {
      lastState = state;
      // Ignore the state of a keeper that was replaced meanwhile.
      if (client === undefined || keeper.client !== client) return;
      const hasLost = state.mounts < (keeper.state?.mounts ?? 0);
      keeper.state = state;
      termination.handleState(keeper, client, state);
      if (hasLost && !closing.signal.aborted) onMountsLost();
    };
    const onClosed = (): void => connectionClosed(keeper, client, liveness);
    const path = starter.socketOf(keeper.name);
    const client = tryConnect({ user, copies, changed: onStateChange, closed: onClosed, path, clock, version });
    if (client === undefined) return undefined;
    const liveness = createKeeperLiveness({
      clock,
      status: client.status,
      onHang: () => void termination.kill(keeper, client),
    });
    if (copies !== undefined) await shareOrClose(client, copies, { keeper: keeper.name, log, clock }, closing.signal);
    [keeper.client, keeper.liveness] = [client, liveness];
    if (lastState !== undefined) onStateChange(lastState);
    return client;
  }

  function connectionClosed(keeper: KnownKeeper, client: KeeperClient | undefined, liveness: KeeperLiveness): void {
    liveness[Symbol.dispose]();
    if (keeper.client !== client) return;
    forget(keeper);
    if (closing.signal.aborted) return;
    log.warn('a keeper is gone', { keeper: keeper.name });
    if ((keeper.copies?.mounts.length ?? 0) > 0)
      void reconnectUntilTimeout(keeper, {
        clock,
        log,
        keeperWaitMs,
        keeperLocks,
        connect,
        onMountsLost,
        signal: closing.signal,
      });
    else onMountsLost();
  }

  async function findRunning(name: string, signal: AbortSignal): Promise<KnownKeeper | undefined> {
    const keeper = getOrCreate(name);
    // Without the lock for a connected keeper, so that callers do not wait for an upgrade.
    if (keeper.client !== undefined) return keeper;
    using _ = await keeperLocks.hold([name], signal);
    try {
      const isUsable =
        (await connectOrRestart(keeper, { connect, starter, log }, signal)) || (keeper.copies?.mounts.length ?? 0) > 0;
      return isUsable ? keeper : undefined;
    } catch (cause) {
      log.warn('a keeper does not answer', { keeper: name, why: String(cause) });
      return keeper;
    }
  }

  return {
    getOrCreate,
    keeperLocks,
    connect,
    forget,
    findRunning,
    isStuck: termination.isStuck,
    listRunning: async (signal) => {
      const names = await keeperNames(folder);
      return (await Promise.all(names.map((name) => findRunning(name, signal)))).filter(
        (keeper) => keeper !== undefined,
      );
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

const keeperNames = async (folder: string): Promise<readonly string[]> =>
  (await readdir(folder).catch(() => [])).filter((name) => /^(host|net-)/.test(name) && !name.includes('.'));

async function shareOrClose(
  client: KeeperClient,
  copies: DescriptorCopies,
  { keeper, log, clock }: { readonly keeper: string; readonly log: Log; readonly clock: Clock },
  signal: AbortSignal,
): Promise<void> {
  using limit = clock.deadline(shareTimeoutMs, signal);
  try {
    await shareDescriptors(client, copies, { keeper, log }, limit.signal);
  } catch (cause) {
    client[Symbol.dispose]();
    throw cause;
  }
}

/** If the keeper is gone, a data path that lives keeps serving, and waits for another keeper to take over. */
async function connectOrRestart(
  keeper: KnownKeeper,
  { connect, starter, log }: Pick<KnownKeepers, 'connect'> & Pick<KnownKeepersOptions, 'starter' | 'log'>,
  signal: AbortSignal,
): Promise<boolean> {
  if (keeper.client !== undefined || (await connect(keeper)) !== undefined) return true;
  if (!isServed(starter.socketOf(keeper.name))) return false;
  log.info('starting another keeper for a data path that lost its own', { keeper: keeper.name });
  await starter.restart(keeper.name, signal);
  return (await connect(keeper)) !== undefined;
}
