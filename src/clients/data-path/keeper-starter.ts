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
import { killKeeper, launchContainer, networkFor, removeEndedContainers } from './keeper-container.ts';
import { createKeeperKindFiles, type KeeperKind, type StoredKeeperKind } from './keeper-kind.ts';
import { createKeeperPlacement, type KeeperPlacementOptions } from './keeper-placement.ts';
import { createKeeperFolder, defaultPodUser, requirePodSupport, waitForKeeper } from './keeper-pod.ts';
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
  removeEndedContainers(signal: AbortSignal): Promise<number>;
  socketOf(name: string): string;
  /** Kubernetes starts the keepers in pods of their own. Stowage waits for them and never ends them. */
  readonly areExternal: boolean;
  /** The user that keepers run as. */
  user(): Promise<number>;
  /** Creates the folder that external keepers wait for. */
  createExternalFolder(): Promise<void>;
}

export interface KeeperStarterOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
  /** Default: networks are namespaces themselves. */
  readonly findNamespace?: FindNamespace | undefined;
  /** Default: keepers are processes beside this one. */
  readonly placement?: KeeperPlacementOptions | undefined;
}

type PreviousPlacement = Pick<StoredKeeperKind, 'namespace' | 'isMoving'>;

/** How to launch a keeper, and the user it then runs as. */
interface LaunchMethod {
  readonly user: number;
  readonly commandPrefix: readonly string[];
  readonly launch: Launch;
}

/** The name of the keeper for mounts without special requirements. */
export const defaultKeeperName = 'host';

/** The data path's program, relative to this file in the sources and in the bundle. */
const isSource = extname(import.meta.filename) === '.ts';
export const dataPathProgram = isSource
  ? join(import.meta.dirname, '..', '..', 'datapath', 'main.ts')
  : join(import.meta.dirname, 'data-path.mjs');

export function createKeeperStarter(options: KeeperStarterOptions): KeeperStarter {
  const { clock, log, folder, version, findNamespace = findNamedNamespace } = options;
  const logOnce = createLogOnce(log);
  const { instance = '', podUser = defaultPodUser, ...rest } = options.placement ?? {};
  const areExternal = options.placement?.requestedPlace === 'pod';
  const user = (): Promise<number> => (areExternal ? keeperUser(folder, podUser) : keeperUser(folder));
  const placement = createKeeperPlacement(
    { instance, engines: new Map(), requestedPlace: 'process', ...rest },
    { folder, clock, logOnce },
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
    const containerOptions = { own, instance, name, user, network, privilegedPorts: kind.privilegedPorts, logOnce };
    const launch = launchContainer({ ...containerOptions, folder: dirname(socketOf(name)) });
    return { user, commandPrefix: [], launch };
  }

  async function createFolder(name: string): Promise<void> {
    await mkdir(folder, { recursive: true, mode: 0o711 });
    await createKeeperFolder(dirname(socketOf(name)), await user());
  }

  async function waitForExternal(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void> {
    requirePodSupport(kind);
    await createFolder(name);
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
    const networkNamespace = kind.network === undefined ? undefined : await findNamespace(kind.network, signal);
    const place = await placement.choosePlace(signal);
    const method =
      typeof place === 'string'
        ? await processLaunch(folder, kind, networkNamespace, logOnce)
        : await containerLaunch(place, name, kind, networkNamespace, signal);
    const keeperFolder = dirname(socketOf(name));
    await mkdir(keeperFolder, { recursive: true, mode: 0o700 });
    await chown(keeperFolder, method.user, method.user);
    await kinds.write(name, { ...kind, ...previous });
    await startKeeper(
      {
        clock,
        enter: method.commandPrefix,
        launch: method.launch,
        socket: socketOf(name),
        program: dataPathProgram,
        flags: dataPathFlags,
        log: join(keeperFolder, 'log'),
        env: { PATH: searchPath(), STOWAGE_VERSION: version },
      },
      signal,
    );
    // Record this only after the start: if it fails, the previous keeper stays where it was.
    const namespace = networkNamespace && (await namespaceIdentity(networkNamespace));
    await kinds.write(name, { ...kind, namespace, isMoving: place === 'later' });
  }

  return {
    socketOf,
    areExternal,
    user,
    createExternalFolder: async () => {
      if (areExternal) await createFolder(defaultKeeperName);
    },
    start: (name, kind, signal) => withEngineErrors(start(name, kind, {}, signal)),
    restart: async (name, signal) => {
      const { network, privilegedPorts, ...previous } = await kinds.read(name);
      await withEngineErrors(start(name, { network, privilegedPorts }, previous, signal));
    },
    kill: async (name) => {
      const place = await placement.choosePlace(new AbortController().signal);
      return typeof place !== 'string' && (await killKeeper(place, name, instance));
    },
    removeEndedContainers: async (signal) => {
      const place = await placement.choosePlace(signal);
      return typeof place === 'string' ? 0 : await removeEndedContainers(place, instance, signal);
    },
    isMisplaced: async (name, signal) => {
      const { network, namespace, isMoving }: Partial<StoredKeeperKind> = await kinds.read(name).catch(() => ({}));
      if (isMoving === true && typeof (await placement.choosePlace(signal)) !== 'string') return true;
      if (network === undefined || namespace === undefined) return false;
      const currentNamespace = await namespaceIdentity(await findNamespace(network, signal));
      return currentNamespace !== undefined && currentNamespace !== namespace;
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
    paths: [folder, dataPathProgram, process.execPath],
  });
  if (rights.fallbackReason !== undefined)
    logOnce('the data path runs as root, without capabilities', { why: rights.fallbackReason });
  if (rights.missingPrograms.length > 0)
    logOnce('the data path is not protected from the OOM killer', { missing: rights.missingPrograms.join(', ') });
  const networkPrefix = namespace === undefined ? [] : await enterNetwork(namespace);
  return { user: rights.user, commandPrefix: [...networkPrefix, ...rights.commandPrefix], launch: launchProcess };
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
    const key = JSON.stringify([message, facts]);
    if (logged.has(key)) return;
    logged.add(key);
    log.info(message, facts);
  };
}

/** Identifies the namespace independently of its path. Undefined: it does not exist. */
async function namespaceIdentity(network: string): Promise<string | undefined> {
  const found = await stat(namespacePath(network), { bigint: true }).catch(() => undefined);
  return found && `${found.dev}:${found.ino}`;
}
