import { join } from 'node:path';
import { type Clock, systemClock } from '#base/clock.ts';
import type { Folders } from '#base/folders.ts';
import { asItIs, type FindNamespace, isInHostNetwork } from '#base/linux/network.ts';
import type { Log, Scope } from '#base/log.ts';
import { createKeepers, type Keepers } from '#clients/data-path/keepers.ts';
import type { KeeperPlace } from '#clients/data-path/placing.ts';
import { createContainerEngine } from '#clients/engines/engine.ts';
import { createEngineNetworks, type EngineNetworks } from '#clients/engines/networks.ts';
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
import { assemble } from './assemble.ts';
import { type FileConfig, readGiven } from './config.ts';
import { type Csi, type CsiWish, startCsi } from './csi.ts';
import { examineMachine } from './doctor.ts';
import { type EmbeddedNfs, type EmbeddedNfsSettings, startEmbeddedNfs } from './embedded-nfs.ts';
import { engineReleased } from './engine-end.ts';
import { type EngineSocket, type EngineWishes, engineSockets } from './engines.ts';
import { isInContainer, withoutHostClient } from './host-client.ts';
import { listenSocket, listenTcp, parseListen } from './listen.ts';
import { nodeNameFrom } from './node-name.ts';
import { onNode } from './node-places.ts';
import { type Plugins, startPlugins } from './plugins.ts';
import { ensureToken, instanceOf, keepersFolder, prepareState, type StateFolder } from './state-folder.ts';
import { dataPathJson, statusOf } from './status.ts';
import { type StoreSources, storeConfigs } from './store-configs.ts';
import { beside, keepApart, localPlace, nfsPlace } from './store-places.ts';
import { version } from './version.ts';

export interface UpSettings {
  readonly folders: Folders;
  /** Undefined: the file in the configuration folder, if there is one. `none`: no file at all. */
  readonly config: string | undefined;
  readonly listen: string | undefined;
  readonly log: Log;
  readonly signal: AbortSignal;
  /** With an NFS server in a process of its own, and a store on it. */
  readonly nfs?: EmbeddedNfsSettings | undefined;
  /** Time, where it is not the system's. */
  readonly clock?: Clock;
  /** The kinds of stores there are, where they are not the usual ones. */
  readonly kinds?: readonly StoreKind[];
  /** Those whose containers use volumes, where they are not to be found by their sockets. */
  readonly engines?: readonly ContainerEngine[];
  /** The sockets of engines, as the command line gives them. */
  readonly engineSockets?: EngineWishes;
  /** The folder for the sockets by which engines reach Stowage, or `none`. */
  readonly plugins?: string | undefined;
  /** The sockets of CSI drivers. Undefined: none. */
  readonly csi?: CsiWish | undefined;
  /** Whether to look for engines, and serve them, where nobody said anything; else why not. Not said: no. */
  readonly lookAround?: boolean | string;
  /** Where keepers run. Undefined: in containers, where Stowage itself runs in one that an engine of these made. */
  readonly keeperPlace?: KeeperPlace | undefined;
  /** What this machine is called. Undefined: as it calls itself. */
  readonly nodeName?: string | undefined;
  /** The marks of this process and of dead ones on shared stores. Undefined: those that the state folder tells. */
  readonly marks?: ProcessMarks;
  /** No store of its own, and no TCP port: what `stowage node` is. */
  readonly bare?: boolean;
  /** The stores of a cluster, as they are known at the moment; `reload` asks again. */
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
  /** The REST API for who asks from within, as the owner of its socket. */
  readonly api: RestServer['handleTrusted'];
  /** Reads the configuration again; what is wrong with it is thrown, and nothing has changed then. */
  reload(): Promise<void>;
  /** What was left mounted because somebody uses it. */
  stop(): Promise<readonly string[]>;
}

const maintenanceEveryMs = 30_000;
const passMs = 600_000;
/** For operations that run when Stowage is told to stop; the rest goes on at the next start. */
const drainMs = 10_000;
const pluginMs = 5_000;

/** Everything in one process: what `stowage up` runs. */
export async function startUp(settings: UpSettings): Promise<Running> {
  const { folders, log } = settings;
  const clock = settings.clock ?? systemClock();
  const startedAt = clock.now();
  await using undo = new AsyncDisposableStack();
  const state = await prepareState(folders.state, folders.socket);
  // Ended after everything that may have something to say to it.
  const servers = undo.use(new AsyncDisposableStack());
  const records = openRecords(state.database);
  const closing = { close: async (): Promise<void> => records.close() };
  undo.defer(() => closing.close());
  const nfs =
    settings.nfs && (await startEmbeddedNfs(settings.nfs, { state, socket: folders.socket, records, clock, log }));
  servers.use(nfs);
  // What needs what is there later.
  const late: { repairLoop?: RepairLoop; find: FindNamespace } = { find: asItIs };
  const find: FindNamespace = (network, signal) => late.find(network, signal);
  const isContained = await isInContainer(process.env, settings.keeperPlace);
  const kinds = new Map(
    (settings.kinds ?? usualKinds({ state, clock, nfs, find, isContained, keeperPlace: settings.keeperPlace })).map(
      (kind) => [kind.scheme, kind],
    ),
  );
  const configFile = settings.config === 'none' ? undefined : (settings.config ?? join(folders.config, 'stowage.yaml'));
  const readFile = (): Promise<FileConfig | undefined> => readGiven(configFile, settings.config !== undefined, kinds);
  const file = await readFile();
  const lookAround = settings.lookAround ?? false;
  const sockets =
    settings.engines === undefined
      ? engineSockets([settings.engineSockets ?? {}, file?.engines ?? {}], lookAround === true, records)
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
  late.find = networks.find;
  const keepers = undo.use(
    createKeepers({
      clock,
      log,
      version,
      folder: keepersFolder(folders.socket),
      find: networks.find,
      placing: { engines: clients, instance: instanceOf(records), wanted: settings.keeperPlace },
      doubted: () => void late.repairLoop?.look(),
      gaveUp: ({ keeper, ...what }) => core.events.publish('keeper.ended', keeper, undefined, what),
    }),
  );
  const node = nodeNameFrom(settings.nodeName);
  const core = await assemble({ records, kinds, state, keepers, engines, node, marks: settings.marks, clock, log });
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
        // A store that could not be opened without it need not wait for its turn.
        nfs?.whenReady(() => core.stores.retry(scope));
      },
      repairable: (one) => {
        undo.use(one);
        late.repairLoop = one;
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
    { wanted: settings.plugins ?? file?.plugins, usual: lookAround, engines: sockets.length > 0 },
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
  // A test that moves its own clock runs the tasks itself.
  const tasks = settings.clock === undefined ? maintenanceOf(core, keepers, networks) : [];
  const maintenance = startMaintenance(tasks, clock, scope);
  const held = { clock, isHeld: () => records.holds.list().length > 0, isEnding: () => keepers.areEnding() };
  const released = (): Promise<void> => engineReleased(held, settings.signal);
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
        released,
        log,
        repairLoop: late.repairLoop,
      }),
  };
}

interface KindParts {
  readonly state: StateFolder;
  readonly clock: Clock;
  readonly nfs: EmbeddedNfs | undefined;
  readonly find: FindNamespace;
  readonly keeperPlace: KeeperPlace | undefined;
  /** This process runs in a container. */
  readonly isContained: boolean;
}

function usualKinds({ state, clock, nfs, find, keeperPlace, isContained }: KindParts): readonly StoreKind[] {
  const connect = (): Connect => createConnect(clock, withPodNetworks(find));
  const own = createNfsStoreKind(clock, connect(), connect);
  const local = createLocalStoreKind();
  const network = isContained ? withoutHostClient(own) : own;
  return [
    // With keepers in pods this is one, too.
    keepApart(local, localPlace(local), beside(state, nfs?.exported), ...(keeperPlace === 'pod' ? [onNode()] : [])),
    keepApart(nfs === undefined ? network : nfs.explaining(network), nfsPlace),
  ];
}

/** Work on keepers and on networks of container engines, beside core's own. */
function maintenanceOf(core: Core, keepers: Keepers, networks: EngineNetworks): readonly MaintenanceTask[] {
  const often = { everyMs: maintenanceEveryMs, deadlineMs: passMs };
  return [
    ...core.maintenance,
    { ...often, name: 'end idle data paths', run: ({ signal }) => keepers.tidy(signal) },
    {
      ...often,
      name: 'leave unused networks',
      run: ({ signal }) => {
        const used = core.stores.list().flatMap(({ config }) => config.options['network'] ?? []);
        return networks.tidy(new Set(used), signal);
      },
    },
  ];
}

interface Stopping {
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
  /** When no engine that ends has anything to say any more. */
  readonly released: () => Promise<void>;
  readonly log: Log;
}

async function stop(parts: Stopping): Promise<readonly string[]> {
  const { core, rest, plugins, csi, found, nfs, keepers, clients, log } = parts;
  parts.repairLoop?.[Symbol.dispose]();
  await parts.maintenance[Symbol.asyncDispose]();
  await parts.released();
  // First, and before nothing new is begun any more: an engine that is just mounting something gets it.
  await Promise.all([plugins.close(pluginMs), csi.close(pluginMs)]);
  // Longer than the drain, so that whoever waits for an operation is told what became of it.
  const closed = rest.close(drainMs + 2_000);
  await core.operations.drain(drainMs);
  await closed;
  const limit = AbortSignal.timeout(60_000);
  const left = await closeCore(core, { signal: limit, log });
  for (const one of found) one[Symbol.dispose]();
  await keepers
    .endIdle(limit)
    .catch((cause: unknown) => log.warn('a data path was left running', { why: String(cause) }));
  await keepers[Symbol.asyncDispose]();
  for (const client of clients.values()) client[Symbol.dispose]();
  // Last: until then stores may have something to say to it.
  await nfs?.[Symbol.asyncDispose]();
  return left;
}
