import { createHash, randomUUID } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { hostname } from 'node:os';
import process from 'node:process';
import { onAbort, untilAborted } from '#base/aborted.ts';
import { type Clock, systemClock } from '#base/clock.ts';
import type { Folders } from '#base/folders.ts';
import type { Log, Scope } from '#base/log.ts';
import type { ControllerOptions } from '#cli/io.ts';
import type { RequestHandler } from '#cluster/server/tls-server.ts';
import { createCaches } from '#controllers/caches.ts';
import { createCapacity } from '#controllers/capacity.ts';
import { createDeleting } from '#controllers/deleting.ts';
import { createHealth } from '#controllers/health.ts';
import type { Controller } from '#controllers/machinery/controller.ts';
import { createEvents, type Events } from '#controllers/machinery/events.ts';
import { createLeader, LeadershipLost } from '#controllers/machinery/leader.ts';
import { type ControllerMetrics, createControllerMetrics } from '#controllers/metrics.ts';
import { createMountProblems } from '#controllers/mount-problems.ts';
import { createNodeLoss } from '#controllers/node-loss.ts';
import { createNodeProvisioner } from '#controllers/node-provisioner.ts';
import { createNodeStores } from '#controllers/node-stores.ts';
import { createNodeVolumes } from '#controllers/node-volumes.ts';
import { createOrphans } from '#controllers/orphans.ts';
import { createCoreProvisioner, createWhyNotOpen } from '#controllers/provisioner.ts';
import { createProvisioning } from '#controllers/provisioning.ts';
import { createResizing } from '#controllers/resizing.ts';
import { createRestarts } from '#controllers/restarts.ts';
import { createStoreHealth } from '#controllers/store-health.ts';
import { createStoresController } from '#controllers/stores.ts';
import type { ProcessMarks, StoreKind } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { KubeError } from '#wire/kube/errors.ts';
import { namespaces } from '#wire/kube/resources.ts';
import { type ClusterApi, startClusterApi } from './cluster-api.ts';
import { createControllerMarks } from './controller-marks.ts';
import { serveHealth } from './health.ts';
import { refuseHostClient } from './host-client.ts';
import { kubeAccess } from './kube-access.ts';
import { createLeaderServer, type ListenAddress, listenAddress } from './leader-server.ts';
import { createLog, levelFrom } from './logger.ts';
import { releaseMemoryWhenIdle } from './memory-release.ts';
import { prepareState } from './state-folder.ts';
import { locateNfsStore, refuseOverlaps } from './store-overlaps.ts';
import { startUp } from './up.ts';
import { version } from './version.ts';

const leaseName = 'stowage-controller';
/** For sending the last Events before the end. */
const eventDrainTimeoutMs = 2_000;

/** `stowage controller`: waits until it leads, then works until SIGINT or SIGTERM. Returns the exit status. */
export async function runController(
  options: ControllerOptions,
  folders: Folders,
  interrupted: AbortSignal,
): Promise<number> {
  const log = createLog(levelFrom(options.logLevel), process.stderr);
  const clock = systemClock();
  const stop = new AbortController();
  using _interrupt = onAbort(interrupted, () => stop.abort());
  process.once('SIGTERM', () => stop.abort());
  const listenOn = listenAddress(options.listen, process.env['POD_IP']);
  const access = await kubeAccess({ kubeconfig: options.kubeconfig, env: process.env, clock });
  using _memory = releaseMemoryWhenIdle(clock);
  const metrics = createControllerMetrics(version, () => leader.isLeading);
  const userAgent = `stowage-controller/${version}`;
  using client = createKubeClient({ access, clock, userAgent, maxSockets: 48, onResponse: metrics.countRequest });
  // Unique to this process, even if the same pod restarts.
  const identity = `${hostname()}_${randomUUID()}`;
  const namespace = options.namespace ?? access.namespace;
  // With a connection of its own: the leader must be able to renew its Lease however many other calls are pending.
  using leaseClient = createKubeClient({ access, clock, userAgent, maxSockets: 1, onResponse: metrics.countRequest });
  const { note, marks } = await createControllerMarks({ client, clock, namespace, env: process.env });
  const leader = createLeader({ client: leaseClient, clock, namespace, name: leaseName, identity, note });
  const state = { isWorking: false };
  const whyNotReady = (): string | undefined => {
    if (leader.isLeading) return state.isWorking ? undefined : 'the controller has just become the leader';
    return leader.holder === '' ? 'the controller does not know the leader yet' : undefined;
  };
  await using health = await serveHealth(options.health, whyNotReady, () => metrics);
  const at = health.address === undefined ? '' : `, health at ${health.address}`;
  process.stdout.write(`stowage controller is waiting for leadership as ${identity}${at}\n`);
  const working = (): void => {
    state.isWorking = true;
    process.stdout.write('stowage controller is the leader\n');
  };
  try {
    const server = { listenOn, tlsSecret: options.tlsSecret };
    const work = (scope: Scope): Promise<void> =>
      lead({ client, clock, folders, identity, marks, log, metrics, working, namespace, server }, scope, stop.signal);
    // Only `stop` ends it, so that work in progress is finished.
    await leader.run(work, { signal: new AbortController().signal, log }, stop.signal);
    process.stderr.write('stowage controller stopped\n');
    return 0;
  } catch (thrown) {
    // The supervisor of this process restarts it.
    if (thrown instanceof LeadershipLost) log.error('another process may be the leader now', { why: thrown.message });
    else if (thrown instanceof KubeError)
      log.error('the API server rejected a request that the controller needs', { error: thrown });
    else throw thrown;
    return 1;
  }
}

interface LeaderWorkOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly folders: Folders;
  readonly identity: string;
  readonly marks: () => ProcessMarks;
  readonly log: Log;
  readonly metrics: ControllerMetrics;
  /** The controller's own namespace. */
  readonly namespace: string;
  readonly server: { readonly listenOn: ListenAddress | undefined; readonly tlsSecret: string | undefined };
  /** Called when the controllers have started to work. */
  readonly working: () => void;
}

async function lead(parts: LeaderWorkOptions, scope: Scope, stop: AbortSignal): Promise<void> {
  const { client, clock, folders, log, namespace } = parts;
  await resetDatabase(folders, await clusterInstance(client, scope.signal));
  const all = controllerKinds(clock);
  const kinds = new Map(all.map((kind) => [kind.scheme, kind]));
  const running = await startUp({
    folders,
    clock,
    log,
    signal: scope.signal,
    kinds: all,
    bare: true,
    marks: parts.marks(),
    config: 'none',
    listen: 'none',
    plugins: 'none',
    engines: [],
  });
  const { core } = running;
  const caches = createCaches(client, clock);
  const about = { controller: 'stowage.dev/controller', instance: parts.identity };
  const events = parts.metrics.countEvents(createEvents({ client, clock, ...about }));
  // The API for users needs the agents, and the agents' server needs the API.
  const deferred: { api?: ClusterApi } = {};
  const handle = (): RequestHandler => (request, response) => deferred.api?.handle(request, response);
  const server = createLeaderServer({ ...parts.server, client, clock, namespace, handle }, { log });
  const file = createCoreProvisioner(core, createWhyNotOpen(caches.stores, kinds));
  const { agents } = server;
  const nodes = (): readonly string[] => [...caches.nodes.all()].flatMap(({ metadata }) => metadata.name ?? []);
  await using api = await startClusterApi({ core, client, clock, log, signal: scope.signal, agents, nodes });
  deferred.api = api;
  const base = { client, clock, caches, events, core, kinds, agents, namespace, cluster: core.instance };
  const nodeStores = createNodeStores(base);
  const nodeVolumes = createNodeVolumes(base);
  const local = createNodeProvisioner({ ...base, stores: nodeStores, volumes: nodeVolumes });
  const provisioners = new Map([file, local].map((one) => [one.driver, one]));
  const controllerOptions = { ...base, nodeStores, provisioners };
  const capacity = createCapacity({ ...base, stores: nodeStores });
  const mountProblems = createMountProblems(base);
  const restarts = createRestarts(base);
  const stores = createStoresController({
    ...controllerOptions,
    storeHealth: createStoreHealth({ ...base, mountProblems }),
  });
  const others = [
    createProvisioning(controllerOptions),
    createDeleting(controllerOptions),
    createResizing(controllerOptions),
    createOrphans(controllerOptions),
    createNodeLoss(controllerOptions),
    nodeStores,
    nodeVolumes,
    capacity,
    mountProblems,
    restarts,
    createHealth({ ...base, mountProblems, restarts }),
  ];
  parts.metrics.startLeading({ controllers: [stores, ...others], caches: { ...caches }, agents, events });
  const ending = new AbortController();
  const workScope: Scope = { signal: AbortSignal.any([scope.signal, ending.signal]), log };
  const backgroundTasks = [...Object.values(caches), capacity.cache, events].map((one) => one.run(workScope));
  const stopOrAbort = AbortSignal.any([scope.signal, stop]);
  const started = stores.whenConfigured().then(parts.working);
  const runAfter = async (controller: Controller): Promise<void> => {
    await untilAborted(started, stopOrAbort);
    if (!stopOrAbort.aborted) await controller.run(scope, stop);
  };
  const working = Promise.all([stores.run(scope, stop), ...others.map(runAfter)]);
  const opened = server.run(scope, ending.signal);
  // Finish the work in progress, for which the agents must stay connected. If the server cannot listen, everything ends.
  await Promise.race([working, opened.then(() => working)]);
  if (!scope.signal.aborted) await waitForEvents(events, clock, scope.signal);
  ending.abort();
  await Promise.all([...backgroundTasks, opened]);
  // A process that lost the Lease ends at once: the rest is up to the new leader.
  if (!scope.signal.aborted) await running.stop();
}

/** The same for every controller of a cluster, so that a new leader recognizes its predecessor's work. */
async function clusterInstance(client: KubeClient, signal: AbortSignal): Promise<string> {
  const { metadata } = await client.get(namespaces, { name: 'kube-system' }, signal);
  const digest = createHash('sha256')
    .update(`stowage.dev/cluster ${metadata.uid ?? ''}`)
    .digest('hex');
  // In the form of a random UUID, which is what others expect.
  return [
    digest.slice(0, 8),
    digest.slice(8, 12),
    `8${digest.slice(13, 16)}`,
    `8${digest.slice(17, 20)}`,
    digest.slice(20, 32),
  ].join('-');
}

/** Discards the database of an earlier term, since others have led since then. The truth is on the stores and in Kubernetes. */
async function resetDatabase(folders: Folders, instance: string): Promise<void> {
  const { database } = await prepareState(folders.state, folders.socket);
  for (const ending of ['', '-wal', '-shm', '-journal']) await rm(`${database}${ending}`, { force: true });
  const records = openRecords(database);
  records.settings.set('instance', instance);
  records.close();
}

/** Local stores are included so that the controller recognizes them; their nodes serve them. */
function controllerKinds(clock: Clock): readonly StoreKind[] {
  // The controller authenticates agents by their pods' tokens, so every agent runs in a pod.
  return [refuseOverlaps(refuseHostClient(createNfsStoreKind(clock)), locateNfsStore), createLocalStoreKind()];
}

async function waitForEvents(events: Events, clock: Clock, signal: AbortSignal): Promise<void> {
  const began = clock.elapsed();
  while (events.waiting > 0 && clock.elapsed() - began < eventDrainTimeoutMs) await clock.sleep(20, signal);
}
