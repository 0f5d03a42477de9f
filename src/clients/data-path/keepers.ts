import { createHash } from 'node:crypto';
import { globSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError, type KeeperState } from '#keeper/protocol.ts';
import { createIdleKeepers } from './idle-keepers.ts';
import { stopRequestedFile } from './keeper-container.ts';
import { keeperFailure } from './keeper-errors.ts';
import type { KeeperKind } from './keeper-kind.ts';
import type { KeeperPlacementOptions } from './keeper-placement.ts';
import { createKeeperReplacement } from './keeper-replacement.ts';
import { createKeeperStarter, defaultKeeperName, type KeeperStarter } from './keeper-starter.ts';
import type { AbandonedKeeper } from './keeper-termination.ts';
import { type KnownKeeper, mountsOf, requireReachable, stateOf } from './known-keeper.ts';
import { createKnownKeepers, type KnownKeepers } from './known-keepers.ts';

export interface UsedKeeper extends KeeperClient {
  /** The keeper has had no serving data path for so long that callers should stop waiting for one. */
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
  useHolder<T>(
    mount: string,
    kind: KeeperKind,
    signal: AbortSignal,
    work: (keeper: UsedKeeper) => Promise<T>,
  ): Promise<T | undefined>;
  /** The mounts with this prefix that a keeper has, even if they are no longer in the mount table. */
  servedMounts(prefix: string, signal: AbortSignal): Promise<readonly string[]>;
  /** What is wrong with the keeper of that kind. Undefined: it works, or it does not run. */
  problemOf(kind: KeeperKind, signal: AbortSignal): Promise<string | undefined>;
  /** All keepers: those in use, and those that an earlier process started. */
  status(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Replaces keepers and data paths with those of this program's version, while mounts are in use. */
  upgrade(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Ends keepers that have been idle since the last call, and replaces those that run in the wrong place. */
  runMaintenance(signal: AbortSignal): Promise<void>;
  /** Whether the engine asked keeper containers to stop. It does so only when it stops all containers. */
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
  readonly onMountsLost: () => void;
  /** Called when a keeper was ended, with the reason. */
  readonly onAbandoned: (what: AbandonedKeeper) => void;
  /** The longest time that callers wait for a serving data path. Default: a minute. */
  readonly stuckMs?: number;
  /** For external keepers: how long the mounts of a killed keeper wait for the next one. Default: six minutes. */
  readonly keeperWaitMs?: number;
  /** Default: networks are namespaces themselves. */
  readonly findNamespace?: FindNamespace;
  /** Default: keepers are processes beside this one. */
  readonly placement?: KeeperPlacementOptions;
}

/** A successor takes a fraction of a second to start, and is retried for this long. */
const defaultStuckMs = 60_000;
/** Longer than the longest back-off of a kubelet for a container that keeps ending. */
const defaultKeeperWaitMs = 360_000;

export function createKeepers(options: KeepersOptions): Keepers {
  const { clock, log, folder, version, onMountsLost, onAbandoned, stuckMs = defaultStuckMs } = options;
  const { keeperWaitMs = defaultKeeperWaitMs } = options;
  const { findNamespace, placement } = options;
  const starter = createKeeperStarter({ clock, log, folder, version, findNamespace, placement });
  const { socketOf } = starter;
  /** The marks from before this process started. A keeper that restarts removes its mark; the mark of any other keeper stays. */
  const initialMarks = marksIn(folder);
  const known = createKnownKeepers({
    clock,
    log,
    folder,
    version,
    stuckMs,
    keeperWaitMs,
    starter,
    onMountsLost,
    onAbandoned,
  });
  void starter
    .createExternalFolder()
    .catch((cause: unknown) => log.error('failed to create the folder of the keepers', { folder, why: String(cause) }));
  const { listRunning, isStuck } = known;
  const replacement = createKeeperReplacement({ log, known, starter });
  const idle = createIdleKeepers({ clock, log, known, starter, replacement });

  const statusOf = async (keeper: KnownKeeper, signal: AbortSignal): Promise<KeeperStatus> => ({
    name: keeper.name,
    state: await stateOf(keeper, clock, signal),
  });

  /** Keeps the keeper from being ended while it is in use. */
  async function withKeeper<T>(
    keeper: KnownKeeper,
    signal: AbortSignal,
    client: () => Promise<KeeperClient>,
    work: (keeper: UsedKeeper) => Promise<T>,
  ): Promise<T> {
    keeper.useCount++;
    keeper.idleRounds = 0;
    try {
      requireReachable(keeper);
      return await work({ ...(await client()), isStuck: isStuck(keeper) });
    } catch (cause) {
      signal.throwIfAborted();
      throw keeperFailure(cause, dirname(socketOf(keeper.name)));
    } finally {
      keeper.useCount--;
    }
  }

  return {
    use: (kind, signal, work) => {
      const keeper = known.getOrCreate(keeperName(kind));
      const client = async (): Promise<KeeperClient> => {
        // When an engine restarts it creates its networks again; don't make this mount wait for the next maintenance pass.
        if (kind.network !== undefined && keeper.client !== undefined)
          await replacement.replaceIfMisplaced(keeper, signal);
        return await connectOrStart(keeper, kind, { known, starter }, signal);
      };
      return withKeeper(keeper, signal, client, work);
    },
    useHolder: async (mount, kind, signal, work) => {
      const keeper = await holderOf(mount, kind, { known, clock }, signal).catch((cause: unknown) => {
        signal.throwIfAborted();
        throw keeperFailure(cause, dirname(socketOf(keeperName(kind))));
      });
      if (keeper === undefined) return undefined;
      const client = async (): Promise<KeeperClient> => {
        if (keeper.client === undefined) throw new KeeperError('gone', 'the keeper has gone');
        return keeper.client;
      };
      return await withKeeper(keeper, signal, client, work);
    },
    servedMounts: async (prefix, signal) => {
      // Skips keepers that do not answer: their volumes are remounted elsewhere, or hang.
      const mountLists = (await listRunning(signal)).map((keeper) =>
        mountsOf(keeper, clock, signal).catch((): readonly string[] => []),
      );
      return (await Promise.all(mountLists)).flat().filter((mount) => mount.startsWith(prefix));
    },
    problemOf: async (kind, signal) => {
      const keeper = await known.findRunning(keeperName(kind), signal);
      const state = keeper && (await stateOf(keeper, clock, signal));
      if (state === undefined) return keeper && 'the client that serves the mount does not answer';
      return state.doing === 'failing' ? 'the client that serves the mount keeps crashing' : undefined;
    },
    status: async (signal) => Promise.all((await listRunning(signal)).map((keeper) => statusOf(keeper, signal))),
    upgrade: async (signal) => {
      const all = await listRunning(signal);
      const failures: unknown[] = [];
      // A keeper that cannot be replaced must not prevent the replacement of the others.
      for (const keeper of all)
        await replacement.replace(keeper, signal).catch((cause: unknown) => failures.push(cause));
      if (failures.length > 0) throw failures[0];
      return Promise.all(all.map((keeper) => statusOf(keeper, signal)));
    },
    runMaintenance: idle.runMaintenance,
    endIdle: idle.endIdle,
    areEnding: () => [...marksIn(folder)].some(([mark, madeAt]) => initialMarks.get(mark) !== madeAt),
    [Symbol.asyncDispose]: async () => known[Symbol.dispose](),
  };
}

/** The keeper that has the mount. Undefined: none has it. */
async function holderOf(
  mount: string,
  kind: KeeperKind,
  { known, clock }: { readonly known: KnownKeepers; readonly clock: Clock },
  signal: AbortSignal,
): Promise<KnownKeeper | undefined> {
  const hasMount = async (keeper: KnownKeeper): Promise<boolean> =>
    (await mountsOf(keeper, clock, signal)).includes(mount);
  const ownKeeper = async (): Promise<readonly [KnownKeeper | undefined, boolean]> => {
    const keeper = await known.findRunning(keeperName(kind), signal);
    return [keeper, keeper !== undefined && (await hasMount(keeper))];
  };
  // If the keeper ended during the first call, the second call finds its data path, or nothing.
  const [own, isHolder] = await ownKeeper().catch((cause: unknown) => {
    if (isGone(cause)) return ownKeeper();
    throw cause;
  });
  // The usual case: problems of other keepers don't matter.
  if (isHolder) return own;
  const others = (await known.listRunning(signal)).filter((keeper) => keeper !== own);
  const found = await Promise.all(others.map((keeper) => hasMount(keeper).catch(() => false)));
  signal.throwIfAborted();
  return others.find((_, at) => found[at]);
}

/** The connection to the keeper, which is started if it does not run. */
async function connectOrStart(
  keeper: KnownKeeper,
  kind: KeeperKind,
  { known, starter }: { readonly known: KnownKeepers; readonly starter: KeeperStarter },
  signal: AbortSignal,
): Promise<KeeperClient> {
  using _ = await known.keeperLocks.hold([keeper.name], signal);
  const current = keeper.client ?? (await known.connect(keeper));
  if (current !== undefined) return current;
  await starter.start(keeper.name, kind, signal);
  const started = await known.connect(keeper);
  if (started === undefined) throw new KeeperError('gone', 'the keeper has gone');
  return started;
}

const isGone = (cause: unknown): boolean => cause instanceof KeeperError && cause.reason === 'gone';

/** The name must be short: the length of a socket path is limited. */
export function keeperName({ network, privilegedPorts }: KeeperKind): string {
  const networkName =
    network === undefined ? defaultKeeperName : `net-${createHash('sha256').update(network).digest('hex').slice(0, 8)}`;
  return privilegedPorts ? `${networkName}-low` : networkName;
}

/** The marks of containers that were asked to stop, each with its modification time. */
function marksIn(folder: string): ReadonlyMap<string, number> {
  const marks = globSync(join('*', stopRequestedFile), { cwd: folder });
  const stats = marks.map((mark) => [mark, statSync(join(folder, mark), { throwIfNoEntry: false })?.mtimeMs] as const);
  return new Map(stats.flatMap(([mark, madeAt]) => (madeAt === undefined ? [] : [[mark, madeAt] as const])));
}
