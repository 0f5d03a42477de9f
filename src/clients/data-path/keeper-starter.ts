import { chown, mkdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
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
import { createKeeperPlacement, type KeeperPlacementOptions } from './keeper-placement.ts';
import { findKeeper, makePlace, podKeeperUser, refuseForPods } from './keeper-pod.ts';
import { keeperRights } from './keeper-rights.ts';
import { keeperUser } from './keeper-user.ts';
import type { OwnContainer } from './own-container.ts';

/** Mounts of different kinds need different keepers: they connect from different networks, or with different rights. */
export interface KeeperKind {
  readonly network: string | undefined;
  readonly privilegedPorts: boolean;
}

/** The kind as recorded in a file beside the keeper's folder. */
interface WrittenKind extends KeeperKind {
  /** The namespace of its network in which the keeper was started. */
  readonly namespace?: string | undefined;
  /** It runs beside this process for now, and will move to a container of its own. */
  readonly isMoving?: boolean;
}

/** Starts keepers, each in a folder of its own. */
export interface KeeperStarter {
  start(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void>;
  /** Starts another keeper in the place of an earlier one. */
  again(name: string, signal: AbortSignal): Promise<void>;
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
  /** Somebody else starts keepers, elsewhere. Stowage waits for them and never ends them. */
  readonly areFound: boolean;
  /** The user that keepers run as. */
  user(): Promise<number>;
  /** Creates the folder that keepers started by somebody else wait for. */
  prepare(): Promise<void>;
}

export interface StartingOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
  /** Default: networks are namespaces themselves. */
  readonly find?: FindNamespace | undefined;
  /** Default: keepers are processes beside this one. */
  readonly placing?: KeeperPlacementOptions | undefined;
}

type Before = Pick<WrittenKind, 'namespace' | 'isMoving'>;

/** How to launch a keeper, and the user it then runs as. */
interface Way {
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

export function createKeeperStarter(options: StartingOptions): KeeperStarter {
  const { clock, log, folder, version, find = findNamedNamespace } = options;
  const told = new Set<string>();
  const { instance = '', podUser = podKeeperUser, ...rest } = options.placing ?? {};
  const areFound = options.placing?.wanted === 'pod';
  const user = (): Promise<number> => (areFound ? keeperUser(folder, podUser) : keeperUser(folder));
  const placing = createKeeperPlacement(
    { instance, engines: new Map(), wanted: 'process', ...rest },
    { folder, clock, tell: tellOnce },
  );
  const socketOf = (name: string): string => join(folder, name, 'sock');
  const kindFile = (name: string): string => join(folder, `${name}.json`);

  function tellOnce(message: string, facts: Readonly<Record<string, string>>): void {
    const all = JSON.stringify([message, facts]);
    if (told.has(all)) return;
    told.add(all);
    log.info(message, facts);
  }

  async function asProcess({ privilegedPorts }: KeeperKind, namespace: string | undefined): Promise<Way> {
    const rights = await keeperRights({
      user: await keeperUser(folder),
      privilegedPorts,
      paths: [folder, program, process.execPath],
    });
    if (rights.why !== undefined) tellOnce('the data path runs as root, without rights', { why: rights.why });
    if (rights.missing.length > 0)
      tellOnce('the data path is not protected when memory is short', { missing: rights.missing.join(', ') });
    const there = namespace === undefined ? [] : await enterNetwork(namespace);
    return { user: rights.user, enter: [...there, ...rights.enter], launch: launchProcess };
  }

  async function asContainer(
    own: OwnContainer,
    name: string,
    kind: KeeperKind,
    namespace: string | undefined,
    signal: AbortSignal,
  ): Promise<Way> {
    const user = await keeperUser(folder);
    const network = await networkFor(own, { network: kind.network, namespace, instance }, signal);
    const about = { own, instance, name, user, network, privilegedPorts: kind.privilegedPorts, tell: tellOnce };
    return { user, enter: [], launch: launchContainer({ ...about, folder: dirname(socketOf(name)) }) };
  }

  async function write(name: string, kind: WrittenKind): Promise<void> {
    // Beside the keeper's folder, where the keeper cannot change it.
    const draft = `${kindFile(name)}.new`;
    await writeFile(draft, JSON.stringify(kind), { mode: 0o600 });
    await rename(draft, kindFile(name));
  }
  const read = async (name: string): Promise<WrittenKind> => JSON.parse(await readFile(kindFile(name), 'utf8'));

  async function prepare(name: string): Promise<void> {
    await mkdir(folder, { recursive: true, mode: 0o711 });
    await makePlace(dirname(socketOf(name)), await user());
  }

  async function waitFor(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void> {
    refuseForPods(kind);
    await prepare(name);
    await write(name, kind);
    await findKeeper(socketOf(name), clock, signal);
  }

  async function start(name: string, kind: KeeperKind, before: Before, signal: AbortSignal): Promise<void> {
    if (areFound) return await waitFor(name, kind, signal);
    await mkdir(folder, { recursive: true, mode: 0o711 });
    const at = kind.network === undefined ? undefined : await find(kind.network, signal);
    const place = await placing.place(signal);
    const way =
      typeof place === 'string' ? await asProcess(kind, at) : await asContainer(place, name, kind, at, signal);
    const folderOfIt = dirname(socketOf(name));
    await mkdir(folderOfIt, { recursive: true, mode: 0o700 });
    await chown(folderOfIt, way.user, way.user);
    await write(name, { ...kind, ...before });
    await startKeeper(
      {
        clock,
        enter: way.enter,
        launch: way.launch,
        socket: socketOf(name),
        program,
        flags: dataPathFlags,
        log: join(folderOfIt, 'log'),
        env: { PATH: searchPath(), STOWAGE_VERSION: version },
      },
      signal,
    );
    // Only now: if the start fails, the previous keeper stays where it was.
    const namespace = at && (await identity(at));
    await write(name, { ...kind, namespace, isMoving: place === 'later' });
  }

  async function starting(work: Promise<void>): Promise<void> {
    try {
      await work;
    } catch (cause) {
      throw cause instanceof DockerError ? engineFailure(cause, 'of this container') : cause;
    }
  }

  return {
    socketOf,
    areFound,
    user,
    prepare: async () => {
      if (areFound) await prepare(usualKeeper);
    },
    start: (name, kind, signal) => starting(start(name, kind, {}, signal)),
    again: async (name, signal) => {
      const { network, privilegedPorts, ...before } = await read(name);
      await starting(start(name, { network, privilegedPorts }, before, signal));
    },
    kill: async (name) => {
      const place = await placing.place(new AbortController().signal);
      return typeof place !== 'string' && (await killKeeper(place, name, instance));
    },
    clear: async (signal) => {
      const place = await placing.place(signal);
      return typeof place === 'string' ? 0 : await removeEnded(place, instance, signal);
    },
    isMisplaced: async (name, signal) => {
      const { network, namespace, isMoving }: Partial<WrittenKind> = await read(name).catch(() => ({}));
      if (isMoving === true && typeof (await placing.place(signal)) !== 'string') return true;
      if (network === undefined || namespace === undefined) return false;
      const now = await identity(await find(network, signal));
      return now !== undefined && now !== namespace;
    },
  };
}

/** Identifies the namespace independently of its path. Undefined: it does not exist. */
async function identity(network: string): Promise<string | undefined> {
  const found = await stat(namespacePath(network), { bigint: true }).catch(() => undefined);
  return found && `${found.dev}:${found.ino}`;
}
