import { createHash, randomUUID } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { hostname } from 'node:os';
import process from 'node:process';
import { aborted } from '#base/aborted.ts';
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
import { giveBackWhenIdle } from './giving-back.ts';
import { serveHealth } from './health.ts';
import { withoutHostClient } from './host-client.ts';
import { kubeAccess } from './kube.ts';
import { createLeaderServer, type ListenPlace, listenPlace } from './leader-server.ts';
import { createLog, levelFrom } from './logger.ts';
import { prepareState } from './state-folder.ts';
import { keepApart, nfsPlace } from './store-places.ts';
import { startUp } from './up.ts';
import { version } from './version.ts';

const leaseName = 'stowage-controller';
/** For what is still to be said when all else is done. */
const lastEventsMs = 2_000;

/** `stowage controller`: waits until it leads, then works until SIGINT or SIGTERM. Gives the exit status. */
export async function runController(
  options: ControllerOptions,
  folders: Folders,
  interrupted: AbortSignal,
): Promise<number> {
  const log = createLog(levelFrom(options.logLevel), process.stderr);
  const clock = systemClock();
  const stop = new AbortController();
  interrupted.addEventListener('abort', () => stop.abort(), { once: true });
  process.once('SIGTERM', () => stop.abort());
  const place = listenPlace(options.listen, process.env['POD_IP']);
  const access = await kubeAccess({ kubeconfig: options.kubeconfig, env: process.env, clock });
  using _memory = giveBackWhenIdle(clock);
  const metrics = createControllerMetrics(version, () => leader.isLeading);
  const userAgent = `stowage-controller/${version}`;
  using client = createKubeClient({ access, clock, userAgent, maxSockets: 48, observed: metrics.request });
  // No other has it, not even the same pod after a restart.
  const identity = `${hostname()}_${randomUUID()}`;
  const namespace = options.namespace ?? access.namespace;
  // With a connection of its own: who leads must be able to say so however many other calls wait for an answer.
  using apart = createKubeClient({ access, clock, userAgent, maxSockets: 1, observed: metrics.request });
  const { note, marks } = await createControllerMarks({ client, clock, namespace, env: process.env });
  const leader = createLeader({ client: apart, clock, namespace, name: leaseName, identity, note });
  const state = { isWorking: false };
  const whyNot = (): string | undefined => {
    if (leader.isLeading) return state.isWorking ? undefined : 'it has just begun to lead';
    return leader.holder === '' ? 'it does not know yet who leads' : undefined;
  };
  await using health = await serveHealth(options.health, whyNot, () => metrics);
  const at = health.address === undefined ? '' : `, health at ${health.address}`;
  process.stdout.write(`stowage controller waits to lead, as ${identity}${at}\n`);
  const working = (): void => {
    state.isWorking = true;
    process.stdout.write('stowage controller leads\n');
  };
  try {
    const door = { place, tlsSecret: options.tlsSecret };
    const work = (scope: Scope): Promise<void> =>
      lead({ client, clock, folders, identity, marks, log, metrics, working, namespace, door }, scope, stop.signal);
    // Its end is only ever asked for by `stop`: what is begun is finished.
    await leader.run(work, { signal: new AbortController().signal, log }, stop.signal);
    process.stderr.write('stowage controller stopped\n');
    return 0;
  } catch (thrown) {
    // Whoever started it starts it again.
    if (thrown instanceof LeadershipLost) log.error('another may lead by now', { why: thrown.message });
    else if (thrown instanceof KubeError) log.error('Kubernetes does not let it work', { error: thrown });
    else throw thrown;
    return 1;
  }
}

interface Leading {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly folders: Folders;
  readonly identity: string;
  readonly marks: () => ProcessMarks;
  readonly log: Log;
  readonly metrics: ControllerMetrics;
  /** Its own. */
  readonly namespace: string;
  readonly door: { readonly place: ListenPlace | undefined; readonly tlsSecret: string | undefined };
  /** Called when it does its work. */
  readonly working: () => void;
}

async function lead(parts: Leading, scope: Scope, stop: AbortSignal): Promise<void> {
  const { client, clock, folders, log, namespace } = parts;
  await begin(folders, await clusterInstance(client, scope.signal));
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
  // The API for users and the agents are each other's.
  const late: { api?: ClusterApi } = {};
  const handle = (): RequestHandler => (request, response) => late.api?.handle(request, response);
  const door = createLeaderServer({ ...parts.door, client, clock, namespace, handle }, { log });
  const file = createCoreProvisioner(core, createWhyNotOpen(caches.stores, kinds));
  const { agents } = door;
  const nodes = (): readonly string[] => [...caches.nodes.all()].flatMap(({ metadata }) => metadata.name ?? []);
  await using api = await startClusterApi({ core, client, clock, log, signal: scope.signal, agents, nodes });
  late.api = api;
  const base = { client, clock, caches, events, core, kinds, agents, namespace, cluster: core.instance };
  const nodeStores = createNodeStores(base);
  const nodeVolumes = createNodeVolumes(base);
  const local = createNodeProvisioner({ ...base, stores: nodeStores, volumes: nodeVolumes });
  const provisioners = new Map([file, local].map((one) => [one.driver, one]));
  const common = { ...base, nodeStores, provisioners };
  const capacity = createCapacity({ ...base, stores: nodeStores });
  const mountProblems = createMountProblems(base);
  const restarts = createRestarts(base);
  const stores = createStoresController({ ...common, storeHealth: createStoreHealth({ ...base, mountProblems }) });
  const others = [
    createProvisioning(common),
    createDeleting(common),
    createResizing(common),
    createOrphans(common),
    createNodeLoss(common),
    nodeStores,
    nodeVolumes,
    capacity,
    mountProblems,
    restarts,
    createHealth({ ...base, mountProblems, restarts }),
  ];
  parts.metrics.startLeading({ controllers: [stores, ...others], caches: { ...caches }, agents, events });
  const ending = new AbortController();
  const beside: Scope = { signal: AbortSignal.any([scope.signal, ending.signal]), log };
  const feeding = [...Object.values(caches), capacity.cache, events].map((one) => one.run(beside));
  const either = AbortSignal.any([scope.signal, stop]);
  const begun = stores.whenConfigured().then(parts.working);
  const runAfter = async (controller: Controller): Promise<void> => {
    await Promise.race([begun, aborted(either)]);
    if (!either.aborted) await controller.run(scope, stop);
  };
  const working = Promise.all([stores.run(scope, stop), ...others.map(runAfter)]);
  const opened = door.run(scope, ending.signal);
  // What is begun is finished, with the agents that it needs; a door that cannot be opened ends all.
  await Promise.race([working, opened.then(() => working)]);
  if (!scope.signal.aborted) await said(events, clock, scope.signal);
  ending.abort();
  await Promise.all([...feeding, opened]);
  // Who no longer leads ends at once: whatever is left to do is another's.
  if (!scope.signal.aborted) await running.stop();
}

/** The cluster's, so that whoever leads knows what another has begun. */
async function clusterInstance(client: KubeClient, signal: AbortSignal): Promise<string> {
  const { metadata } = await client.get(namespaces, { name: 'kube-system' }, signal);
  const digest = createHash('sha256')
    .update(`stowage.dev/cluster ${metadata.uid ?? ''}`)
    .digest('hex');
  // Of the form of a random one, which it is to everybody else.
  return [
    digest.slice(0, 8),
    digest.slice(8, 12),
    `8${digest.slice(13, 16)}`,
    `8${digest.slice(17, 20)}`,
    digest.slice(20, 32),
  ].join('-');
}

/** Nothing is taken up that this process once began: others have led since. What is true is on the stores and in Kubernetes. */
async function begin(folders: Folders, instance: string): Promise<void> {
  const { database } = await prepareState(folders.state, folders.socket);
  for (const ending of ['', '-wal', '-shm', '-journal']) await rm(`${database}${ending}`, { force: true });
  const records = openRecords(database);
  records.settings.set('instance', instance);
  records.close();
}

/** Local stores are known only to be told from others: they are their nodes'. */
function controllerKinds(clock: Clock): readonly StoreKind[] {
  // The controller authenticates agents by their pod's token, so every agent runs in a pod.
  return [keepApart(withoutHostClient(createNfsStoreKind(clock)), nfsPlace), createLocalStoreKind()];
}

async function said(events: Events, clock: Clock, signal: AbortSignal): Promise<void> {
  const began = clock.elapsed();
  while (events.waiting > 0 && clock.elapsed() - began < lastEventsMs) await clock.sleep(20, signal);
}
