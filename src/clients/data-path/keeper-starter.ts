import { chown, mkdir, stat } from 'node:fs/promises';
import { dirname, extname, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { enterNetwork, type FindNamespace, findNamedNamespace, namespacePath } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import { type Launch, launchProcess } from '#keeper/launch.ts';
import { dataPathFlags } from '#keeper/node-flags.ts';
import { startKeeper } from '#keeper/start-keeper.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { engineFailure } from '../engines/engine-errors.ts';
import { searchPath } from '../mounter/tools.ts';
import { killKeeper, launchContainer, networkFor, removeEnded } from './keeper-container.ts';
import { createKeeperKindFiles, type KeeperKind, type StoredKeeperKind } from './keeper-kind.ts';
import { createKeeperPlacement, type KeeperPlacementOptions } from './keeper-placement.ts';
import { createKeeperFolder, podKeeperUser, requirePodSupport, waitForKeeper } from './keeper-pod.ts';
import { keeperRights } from './keeper-rights.ts';
import { keeperUser } from './keeper-user.ts';
import type { OwnContainer } from './own-container.ts';

/** Starts keepers, each in a folder of its own. */
export interface KeeperStarter {
  start(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void>;
  /** Starts another keeper in the place of an earlier one. */
  restart(name: string, signal: AbortSignal): Promise<void>;
  /** Kills a hanging keeper that no process of this container can reach. False: it can be killed only from its own container. */
  kill(name: string): Promise<boolean>;
  /**
   * The keeper runs in the wrong place: its network has another namespace by now, because an engine that restarts creates the namespaces of
   * its containers again; or its container could not be created before.
   */
  isMisplaced(name: string, signal: AbortSignal): Promise<boolean>;
  /** Removes the containers of keepers that have ended. Returns how many others there are. */
  clear(signal: AbortSignal): Promise<number>;
  socketOf(name: string): string;
  /** Kubernetes starts the keepers, elsewhere. Stowage waits for them and never ends them. */
  readonly areExternal: boolean;
  /** The user that keepers run as. */
  user(): Promise<number>;
  /** Creates the folder that external keepers wait for. */
  prepare(): Promise<void>;
}

export interface KeeperStarterOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
  /** Default: networks are namespaces themselves. */
  readonly find?: FindNamespace | undefined;
  /** Default: keepers are processes beside this one. */
  readonly placement?: KeeperPlacementOptions | undefined;
}

type PreviousPlacement = Pick<StoredKeeperKind, 'namespace' | 'isMoving'>;

/** How to launch a keeper, and the user it then runs as. */
interface LaunchMethod {
  readonly user: number;
  readonly enter: readonly string[];
  readonly launch: Launch;
}

/** The name of the keeper for mounts without special requirements. */
export const usualKeeper = 'host';

/** The data path's program, relative to this file in the sources and in the bundle. */
const isSource = extname(import.meta.filename) === '.ts';
export const program = isSource
  ? join(import.meta.dirname, '..', '..', 'datapath', 'main.ts')
  : join(import.meta.dirname, 'data-path.mjs');

export function createKeeperStarter(options: KeeperStarterOptions): KeeperStarter {
  const { clock, log, folder, version, find = findNamedNamespace } = options;
  const logOnce = createLogOnce(log);
  const { instance = '', podUser = podKeeperUser, ...rest } = options.placement ?? {};
  const areExternal = options.placement?.requestedPlace === 'pod';
  const user = (): Promise<number> => (areExternal ? keeperUser(folder, podUser) : keeperUser(folder));
  const placement = createKeeperPlacement(
    { instance, engines: new Map(), requestedPlace: 'process', ...rest },
    { folder, clock, tell: logOnce },
  );
  const socketOf = (name: string): string => join(folder, name, 'sock');
  const kinds = createKeeperKindFiles(folder);

  async function containerLaunch(
    own: OwnContainer,
    name: string,
    kind: KeeperKind,
    namespace: string | undefined,
    signal: AbortSignal,
  ): Promise<LaunchMethod> {
    const user = await keeperUser(folder);
    const network = await networkFor(own, { network: kind.network, namespace, instance }, signal);
    const about = { own, instance, name, user, network, privilegedPorts: kind.privilegedPorts, tell: logOnce };
    return { user, enter: [], launch: launchContainer({ ...about, folder: dirname(socketOf(name)) }) };
  }

  async function prepare(name: string): Promise<void> {
    await mkdir(folder, { recursive: true, mode: 0o711 });
    await createKeeperFolder(dirname(socketOf(name)), await user());
  }

  async function waitForExternal(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void> {
    requirePodSupport(kind);
    await prepare(name);
    await kinds.write(name, kind);
    await waitForKeeper(socketOf(name), clock, signal);
  }

  async function start(
    name: string,
    kind: KeeperKind,
    previous: PreviousPlacement,
    signal: AbortSignal,
  ): Promise<void> {
    if (areExternal) return await waitForExternal(name, kind, signal);
    await mkdir(folder, { recursive: true, mode: 0o711 });
    const at = kind.network === undefined ? undefined : await find(kind.network, signal);
    const place = await placement.place(signal);
    const method =
      typeof place === 'string'
        ? await processLaunch(folder, kind, at, logOnce)
        : await containerLaunch(place, name, kind, at, signal);
    const keeperFolder = dirname(socketOf(name));
    await mkdir(keeperFolder, { recursive: true, mode: 0o700 });
    await chown(keeperFolder, method.user, method.user);
    await kinds.write(name, { ...kind, ...previous });
    await startKeeper(
      {
        clock,
        enter: method.enter,
        launch: method.launch,
        socket: socketOf(name),
        program,
        flags: dataPathFlags,
        log: join(keeperFolder, 'log'),
        env: { PATH: searchPath(), STOWAGE_VERSION: version },
      },
      signal,
    );
    // Only now: if the start fails, the previous keeper stays where it was.
    const namespace = at && (await identity(at));
    await kinds.write(name, { ...kind, namespace, isMoving: place === 'later' });
  }

  return {
    socketOf,
    areExternal,
    user,
    prepare: async () => {
      if (areExternal) await prepare(usualKeeper);
    },
    start: (name, kind, signal) => withEngineErrors(start(name, kind, {}, signal)),
    restart: async (name, signal) => {
      const { network, privilegedPorts, ...previous } = await kinds.read(name);
      await withEngineErrors(start(name, { network, privilegedPorts }, previous, signal));
    },
    kill: async (name) => {
      const place = await placement.place(new AbortController().signal);
      return typeof place !== 'string' && (await killKeeper(place, name, instance));
    },
    clear: async (signal) => {
      const place = await placement.place(signal);
      return typeof place === 'string' ? 0 : await removeEnded(place, instance, signal);
    },
    isMisplaced: async (name, signal) => {
      const { network, namespace, isMoving }: Partial<StoredKeeperKind> = await kinds.read(name).catch(() => ({}));
      if (isMoving === true && typeof (await placement.place(signal)) !== 'string') return true;
      if (network === undefined || namespace === undefined) return false;
      const now = await identity(await find(network, signal));
      return now !== undefined && now !== namespace;
    },
  };
}

async function processLaunch(
  folder: string,
  { privilegedPorts }: KeeperKind,
  namespace: string | undefined,
  logOnce: LogOnce,
): Promise<LaunchMethod> {
  const rights = await keeperRights({
    user: await keeperUser(folder),
    privilegedPorts,
    paths: [folder, program, process.execPath],
  });
  if (rights.why !== undefined) logOnce('the data path runs as root, without capabilities', { why: rights.why });
  if (rights.missing.length > 0)
    logOnce('the data path is not protected from the OOM killer', { missing: rights.missing.join(', ') });
  const there = namespace === undefined ? [] : await enterNetwork(namespace);
  return { user: rights.user, enter: [...there, ...rights.enter], launch: launchProcess };
}

async function withEngineErrors(work: Promise<void>): Promise<void> {
  try {
    await work;
  } catch (cause) {
    throw cause instanceof DockerError ? engineFailure(cause, 'of this container') : cause;
  }
}

type LogOnce = (message: string, facts: Readonly<Record<string, string>>) => void;

/** Logs each message with the same facts once. */
function createLogOnce(log: Log): LogOnce {
  const logged = new Set<string>();
  return (message, facts) => {
    const all = JSON.stringify([message, facts]);
    if (logged.has(all)) return;
    logged.add(all);
    log.info(message, facts);
  };
}

/** Identifies the namespace independently of its path. Undefined: it does not exist. */
async function identity(network: string): Promise<string | undefined> {
  const found = await stat(namespacePath(network), { bigint: true }).catch(() => undefined);
  return found && `${found.dev}:${found.ino}`;
}
