import { chown, mkdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { dirname, extname, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { asItIs, enterNetwork, type FindNamespace, namespacePath } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import { type Launch, launchProcess } from '#keeper/launch.ts';
import { dataPathFlags } from '#keeper/node-flags.ts';
import { startKeeper } from '#keeper/start-keeper.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { engineFailure } from '../engines/errors.ts';
import { searchPath } from '../mounter/tools.ts';
import { killKeeper, launchContainer, networkFor, removeEnded } from './keeper-container.ts';
import type { OwnContainer } from './own-container.ts';
import { createPlacing, type PlacingOptions } from './placing.ts';
import { findKeeper, makePlace, podKeeperUser, refuseForPods } from './pod.ts';
import { keeperRights } from './rights.ts';
import { keeperUser } from './user.ts';

/** What makes a mount need another keeper than the rest: where its connections start, and with which right. */
export interface KeeperKind {
  readonly network: string | undefined;
  readonly privilegedPorts: boolean;
}

/** As it is written down beside a keeper's folder. */
interface WrittenKind extends KeeperKind {
  /** In which namespace of its network the keeper was started. */
  readonly namespace?: string | undefined;
  /** It runs beside this process for now, and shall have a container of its own. */
  readonly isMoving?: boolean;
}

/** Starts keepers, each in a folder of its own. */
export interface Starting {
  start(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void>;
  /** Another one in the place of one that was started before. */
  again(name: string, signal: AbortSignal): Promise<void>;
  /** Kills one that hangs where no process of this container can reach it. False: only whoever has its container can. */
  kill(name: string): Promise<boolean>;
  /**
   * It runs where it should not: its network has another namespace by now, since an engine that is started anew makes those
   * of its containers anew; or its container could not be had before.
   */
  isMisplaced(name: string, signal: AbortSignal): Promise<boolean>;
  /** Removes the containers of those that have ended. Gives how many others there are. */
  clear(signal: AbortSignal): Promise<number>;
  socketOf(name: string): string;
  /** Somebody else starts them, elsewhere: they are waited for, and ended by nobody here. */
  readonly areFound: boolean;
  /** Whom they run as. */
  user(): Promise<number>;
  /** What those that somebody else starts wait for. */
  prepare(): Promise<void>;
}

export interface StartingOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
  /** Left out: networks are namespaces themselves. */
  readonly find?: FindNamespace | undefined;
  /** Left out: keepers are processes beside this one. */
  readonly placing?: PlacingOptions | undefined;
}

type Before = Pick<WrittenKind, 'namespace' | 'isMoving'>;

/** How to launch one, and as whom it runs then. */
interface Way {
  readonly user: number;
  readonly enter: readonly string[];
  readonly launch: Launch;
}

/** For mounts that want nothing particular. */
export const usualKeeper = 'host';

/** Beside this file, in the sources as in the bundle. */
const isSource = extname(import.meta.filename) === '.ts';
export const program = isSource
  ? join(import.meta.dirname, '..', '..', 'datapath', 'main.ts')
  : join(import.meta.dirname, 'data-path.mjs');

export function createStarting(options: StartingOptions): Starting {
  const { clock, log, folder, version, find = asItIs } = options;
  const told = new Set<string>();
  const { instance = '', podUser = podKeeperUser, ...rest } = options.placing ?? {};
  const areFound = options.placing?.wanted === 'pod';
  const user = (): Promise<number> => (areFound ? keeperUser(folder, podUser) : keeperUser(folder));
  const placing = createPlacing(
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
    // Beside the keeper's own folder, where it cannot change it.
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
    // Only now: where it could not be started, the one before is where it was.
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

/** Which namespace it is, whatever its path. Undefined: there is none. */
async function identity(network: string): Promise<string | undefined> {
  const found = await stat(namespacePath(network), { bigint: true }).catch(() => undefined);
  return found && `${found.dev}:${found.ino}`;
}
