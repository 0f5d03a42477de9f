import { join } from 'node:path';
import { type Clock, systemClock } from '#base/clock.ts';
import type { Folders } from '#base/folders.ts';
import { type FindNamespace, findNamedNamespace, isInHostNetwork } from '#base/linux/network.ts';
import type { Log, Scope } from '#base/log.ts';
import type { KeeperPlace } from '#clients/data-path/keeper-placement.ts';
import { createKeepers, type Keepers } from '#clients/data-path/keepers.ts';
import { createContainerEngine } from '#clients/engines/engine.ts';
import { createEngineNetworks, type EngineNetworks } from '#clients/engines/engine-networks.ts';
import { withPodNetworks } from '#clients/pod-network.ts';
import type { ContainerEngine } from '#core/containers.ts';
import type { Core, WholeCore } from '#core/core.ts';
import { closeCore, openCore } from '#core/lifecycle.ts';
import { type MaintenanceTask, startMaintenance } from '#core/maintenance.ts';
import type { ProcessMarks, StoreKind } from '#core/ports.ts';
import type { RepairLoop } from '#core/repair-loop.ts';
import { createRestServer, type RestServer } from '#front/rest/server.ts';
import { openRecords } from '#records/sqlite.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { type Connect, createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { createDockerClient } from '#wire/docker/client.ts';
import { createAppCore } from './app-core.ts';
import { type FileConfig, readConfigFile } from './config.ts';
import { type Csi, type CsiSettings, startCsi } from './csi.ts';
import { examineMachine } from './doctor.ts';
import { type EmbeddedNfs, type EmbeddedNfsSettings, startEmbeddedNfs } from './embedded-nfs.ts';
import { waitForEngineShutdown } from './engine-shutdown.ts';
import { type EngineSocket, type EngineSocketSettings, engineSockets } from './engines.ts';
import { isInContainer, refuseHostClient } from './host-client.ts';
import { listenSocket, listenTcp, parseListen } from './listen.ts';
import { refuseContainerDirectory } from './node-directories.ts';
import { nodeNameFrom } from './node-name.ts';
import { type Plugins, startPlugins } from './plugins.ts';
import { ensureToken, instanceOf, keepersFolder, prepareState, type StateFolder } from './state-folder.ts';
import { dataPathJson, statusOf } from './status.ts';
import { type StoreSources, storeConfigs } from './store-configs.ts';
import { locateLocalStore, locateNfsStore, refuseOverlaps, refuseStateFolder } from './store-overlaps.ts';
import { version } from './version.ts';

export interface UpSettings {
  readonly folders: Folders;
  /** Undefined: the file in the configuration folder, if it exists. `none`: no file. */
  readonly config: string | undefined;
  readonly listen: string | undefined;
  readonly log: Log;
  readonly signal: AbortSignal;
  /** Starts an NFS server in a child process, with a store on it. */
  readonly nfs?: EmbeddedNfsSettings | undefined;
  /** Default: the system's clock. */
  readonly clock?: Clock;
  /** Default: the usual kinds of stores. */
  readonly kinds?: readonly StoreKind[];
  /** The engines whose containers use volumes. Default: those found by their sockets. */
  readonly engines?: readonly ContainerEngine[];
  /** The sockets of engines given on the command line. */
  readonly engineSockets?: EngineSocketSettings;
  /** The folder for the sockets of volume plugins, or `none`. */
  readonly plugins?: string | undefined;
  /** The sockets of the CSI drivers. Undefined: none. */
  readonly csi?: CsiSettings | undefined;
  /** Whether to look for engines and serve them if they are not configured; a text says why not. Default: false. */
  readonly discoverEngines?: boolean | string;
  /** Where keepers run. Undefined: in containers if Stowage itself runs in a container of one of these engines. */
  readonly keeperPlace?: KeeperPlace | undefined;
  /** The name of this machine. Undefined: the host name. */
  readonly nodeName?: string | undefined;
  /** The marks of this process and of dead ones on shared stores. Undefined: those recorded in the state folder. */
  readonly marks?: ProcessMarks;
  /** Without a default store and a TCP port: the mode of `stowage node`. */
  readonly bare?: boolean;
  /** Returns the currently known stores of a cluster; `reload` calls it again. */
  readonly cluster?: StoreSources['cluster'];
}

export interface Running {
  readonly core: WholeCore;
  readonly addresses: readonly string[];
  readonly state: StateFolder;
  readonly nfs: EmbeddedNfs | undefined;
  readonly plugins: Plugins;
  readonly csi: Csi;
  readonly engines: readonly EngineSocket[];
  readonly metrics: RestServer['metrics'];
  /** The REST API for callers in this process, with the rights of the socket's owner. */
  readonly api: RestServer['handleTrusted'];
  /** Reloads the configuration. If it is invalid, throws and changes nothing. */
  reload(): Promise<void>;
  /** Returns the mounts that were left because they are in use. */
  stop(): Promise<readonly string[]>;
}

const maintenanceEveryMs = 30_000;
const maintenanceTimeoutMs = 600_000;
/** For running operations at shutdown; those that take longer continue at the next start. */
const operationDrainMs = 10_000;
const frontCloseGraceMs = 5_000;

/** `stowage up`: runs everything in one process. */
export async function startUp(settings: UpSettings): Promise<Running> {
  const { folders, log, marks } = settings;
  const clock = settings.clock ?? systemClock();
  const startedAt = clock.now();
  await using undo = new AsyncDisposableStack();
  const state = await prepareState(folders.state, folders.socket);
  // Disposed of after everything that may still need the servers.
  const servers = undo.use(new AsyncDisposableStack());
  const records = openRecords(state.database);
  const closing = { close: async (): Promise<void> => records.close() };
  undo.defer(() => closing.close());
  const nfs =
    settings.nfs && (await startEmbeddedNfs(settings.nfs, { state, socket: folders.socket, records, clock, log }));
  servers.use(nfs);
  // For parts that need each other: set later.
  const deferred: { repairLoop?: RepairLoop; find: FindNamespace } = { find: findNamedNamespace };
  const find: FindNamespace = (network, signal) => deferred.find(network, signal);
  const isContained = await isInContainer(process.env, settings.keeperPlace);
  const kinds = new Map(
    (settings.kinds ?? defaultKinds({ state, clock, nfs, find, isContained, keeperPlace: settings.keeperPlace })).map(
      (kind) => [kind.scheme, kind],
    ),
  );
  const configFile = settings.config === 'none' ? undefined : (settings.config ?? join(folders.config, 'stowage.yaml'));
  const readFile = (): Promise<FileConfig | undefined> =>
    readConfigFile(configFile, settings.config !== undefined, kinds);
  const file = await readFile();
  const discoverEngines = settings.discoverEngines ?? false;
  const sockets =
    settings.engines === undefined
      ? engineSockets([settings.engineSockets ?? {}, file?.engines ?? {}], discoverEngines === true, records)
      : [];
  const found = sockets.map((at) => undo.use(createContainerEngine({ ...at, name: at.kind, clock, log })));
  const engines = settings.engines ?? found;
  const clients = new Map(sockets.map(({ kind, socket }) => [kind, undo.use(createDockerClient({ socket, clock }))]));
  const networks = createEngineNetworks({
    engines: clients,
    instance: instanceOf(records),
    log,
    hasHostNetwork: async () => !isContained || (await isInHostNetwork()),
  });
  deferred.find = networks.findNamespace;
  const keepers = undo.use(
    createKeepers({
      clock,
      log,
      version,
      folder: keepersFolder(folders.socket),
      findNamespace: networks.findNamespace,
      placement: { engines: clients, instance: instanceOf(records), requestedPlace: settings.keeperPlace },
      onMountsLost: () => void deferred.repairLoop?.trigger(),
      onAbandoned: ({ keeper, ...what }) => core.events.publish('keeper.ended', keeper, undefined, what),
    }),
  );
  const node = nodeNameFrom(settings.nodeName);
  const core = await createAppCore({ records, kinds, state, keepers, engines, node, marks, clock, log });
  closing.close = core.close;
  const scope: Scope = { signal: settings.signal, log };
  const about = { records, state, kinds, log, nfs, bare: settings.bare === true, cluster: settings.cluster };
  const configure = async (from: FileConfig | undefined): Promise<void> =>
    await core.stores.configure(await storeConfigs(from, about), from?.defaultStore, scope);
  await openCore(
    {
      core,
      clock,
      configure: async () => {
        await nfs?.started;
        await configure(file);
        // Retry at once those stores that could not be opened without the server.
        nfs?.whenReady(() => core.stores.retry(scope));
      },
      onRepairLoop: (one) => {
        undo.use(one);
        deferred.repairLoop = one;
      },
    },
    scope,
  );

  let ready = false;
  const addresses: string[] = [];
  const rest = createRestServer({
    core,
    clock,
    log,
    version,
    signal: settings.signal,
    isReady: () => ready,
    status: (principal) =>
      statusOf(
        { core, startedAt, ready, addresses, plugins, sockets, state: state.path, config: file && configFile },
        principal,
      ),
    doctor: (signal) => examineMachine(state.path, { signal, log }),
    dataPaths: {
      list: async (signal) => (await keepers.status(signal)).map(dataPathJson),
      upgrade: async (signal) => (await keepers.upgrade(signal)).map(dataPathJson),
    },
  });
  undo.defer(() => rest.close(0));
  await rest.ready();
  const plugins = await startPlugins(
    { configured: settings.plugins ?? file?.plugins, useDefault: discoverEngines, engines: sockets.length > 0 },
    { core, clock, log, storeOptions: new Set([...kinds.values()].flatMap((kind) => Object.keys(kind.options))) },
  );
  undo.defer(() => plugins.close(0));
  const csi = await startCsi(settings.csi, { core, clock, log, version, observed: rest.metrics.csiCall });
  undo.defer(() => csi.close(0));
  await listenSocket(rest.local, folders.socket);
  addresses.push(`unix:${folders.socket}`);
  const tcp = parseListen(settings.bare === true ? 'none' : (settings.listen ?? file?.listen ?? '127.0.0.1:7878'));
  if (tcp !== undefined) {
    await ensureToken(state, core.tokens);
    addresses.push(await listenTcp(rest.remote, tcp));
  }
  ready = true;
  // A test with its own clock runs the tasks itself.
  const tasks = settings.clock === undefined ? maintenanceOf(core, keepers, networks) : [];
  const maintenance = startMaintenance(tasks, clock, scope);
  const held = {
    clock,
    hasVolumesInUse: () => records.engineMounts.list().length > 0,
    isShuttingDown: () => keepers.areEnding(),
  };
  const waitForRelease = (): Promise<void> => waitForEngineShutdown(held, settings.signal);
  undo.move();
  return {
    core,
    addresses,
    state,
    nfs,
    plugins,
    csi,
    engines: sockets,
    metrics: rest.metrics,
    api: rest.handleTrusted,
    reload: async () => configure(await readFile()),
    stop: () =>
      stop({
        core,
        rest,
        plugins,
        csi,
        found,
        maintenance,
        nfs,
        keepers,
        clients,
        released: waitForRelease,
        log,
        repairLoop: deferred.repairLoop,
      }),
  };
}

interface UsualKindsOptions {
  readonly state: StateFolder;
  readonly clock: Clock;
  readonly nfs: EmbeddedNfs | undefined;
  readonly find: FindNamespace;
  readonly keeperPlace: KeeperPlace | undefined;
  /** This process runs in a container. */
  readonly isContained: boolean;
}

function defaultKinds({ state, clock, nfs, find, keeperPlace, isContained }: UsualKindsOptions): readonly StoreKind[] {
  const connect = (): Connect => createConnect(clock, withPodNetworks(find));
  const own = createNfsStoreKind(clock, connect(), connect);
  const local = createLocalStoreKind();
  const network = isContained ? refuseHostClient(own) : own;
  return [
    // With keepers in pods, this process runs in a pod, too.
    refuseOverlaps(
      local,
      locateLocalStore(local),
      refuseStateFolder(state, nfs?.exported),
      ...(keeperPlace === 'pod' ? [refuseContainerDirectory()] : []),
    ),
    refuseOverlaps(nfs === undefined ? network : nfs.withServerProblem(network), locateNfsStore),
  ];
}

/** Core's own tasks, and those for keepers and networks of container engines. */
function maintenanceOf(core: Core, keepers: Keepers, networks: EngineNetworks): readonly MaintenanceTask[] {
  const every30Seconds = { everyMs: maintenanceEveryMs, deadlineMs: maintenanceTimeoutMs };
  return [
    ...core.maintenance,
    { ...every30Seconds, name: 'end idle data paths', run: ({ signal }) => keepers.runMaintenance(signal) },
    {
      ...every30Seconds,
      name: 'remove unused networks',
      run: ({ signal }) => {
        const used = core.stores.list().flatMap(({ config }) => config.options['network'] ?? []);
        return networks.removeUnusedAnchors(new Set(used), signal);
      },
    },
  ];
}

interface RunningServices {
  readonly core: Core;
  readonly rest: RestServer;
  readonly plugins: Plugins;
  readonly csi: Csi;
  readonly found: readonly Disposable[];
  readonly maintenance: AsyncDisposable;
  readonly repairLoop: Disposable | undefined;
  readonly nfs: AsyncDisposable | undefined;
  readonly keepers: Keepers;
  readonly clients: ReadonlyMap<unknown, Disposable>;
  /** Resolves when engines that are shutting down have released their volumes. */
  readonly released: () => Promise<void>;
  readonly log: Log;
}

async function stop(parts: RunningServices): Promise<readonly string[]> {
  const { core, rest, plugins, csi, found, nfs, keepers, clients, log } = parts;
  parts.repairLoop?.[Symbol.dispose]();
  await parts.maintenance[Symbol.asyncDispose]();
  await parts.released();
  // Close these before new operations are refused, so that an engine's mount in progress still completes.
  await Promise.all([plugins.close(frontCloseGraceMs), csi.close(frontCloseGraceMs)]);
  // Longer than the drain, so that callers that wait for an operation learn its result.
  const closed = rest.close(operationDrainMs + 2_000);
  await core.operations.drain(operationDrainMs);
  await closed;
  const limit = AbortSignal.timeout(60_000);
  const left = await closeCore(core, { signal: limit, log });
  for (const one of found) one[Symbol.dispose]();
  await keepers
    .endIdle(limit)
    .catch((cause: unknown) => log.warn('failed to end idle data paths', { why: String(cause) }));
  await keepers[Symbol.asyncDispose]();
  for (const client of clients.values()) client[Symbol.dispose]();
  // Last: stores may need the server until then.
  await nfs?.[Symbol.asyncDispose]();
  return left;
}
