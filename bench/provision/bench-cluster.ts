import { readdir, readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { repository } from '#testbed/component.ts';
import { buildImage } from '#testbed/image.ts';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import { addresses } from '#testbed/kubernetes/network.ts';
import { toolPath } from '#testbed/lacks.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { startFiler } from '../../e2e/kubernetes/agent-filer.ts';
import { makeFolder, measuredFileSystems } from '../nfs/measured-folder.ts';
import { type Audit, createAudit } from './audit.ts';
import { prioritizePods } from './cpu-share.ts';
import { processOf, type Running, start } from './process.ts';

/** The side that creates volumes: Stowage on a store, or the loop that only creates the objects. */
export const stores = ['nfs', 'local'] as const;
export type Side = (typeof stores)[number] | 'bare';

const accounts = ['load', 'bare'] as const;
type Account = (typeof accounts)[number];
/** The namespace of the chart. */
const namespace = 'stowage-system';
const controller = 'deployment/stowage-controller';
const silver = 'silver';
/** The names of the classes and their provisioners. */
const classOf: Readonly<Record<Side, string>> = { nfs: silver, local: 'local', bare: 'bare.bench' };
/** Periodic requests, which no claim causes. */
export const periodicRequests =
  /^(watch |\S+ (leases|endpoints|stores|stores\/status|endpointslices|secrets|configmaps|csistoragecapacities)$)/;
const quietMs = 1_500;
/** The limits, many times the expected durations: for the first claim, and for each further one. */
const [firstMs, eachMs] = [60_000, 200];

export interface Created {
  readonly claimsMs: number;
  readonly madeMs: number;
  readonly boundMs: number;
}

/** A running provisioner. */
export type Provisioning = AsyncDisposable & Pick<Running, 'restingMemory' | 'cpuMs'>;

/** The processes of the node, besides the controller. */
export const nodeProcesses = ['agent', 'keeper'] as const;

/** A cluster of one node, an NFS server, and Stowage installed by its chart. The controller runs only on request. */
export interface BenchCluster extends AsyncDisposable {
  /** Resident memory in MB, after it has settled. */
  memoryOf(which: (typeof nodeProcesses)[number]): Promise<number>;
  /** Starts the side and resolves when it is ready. */
  startProvisioner(side: Side): Promise<Provisioning>;
  create(side: Side, prefix: string, count: number): Promise<Created>;
  /** Deletes the created objects. Returns the milliseconds until the last PersistentVolume is gone. */
  remove(side: Side, prefix: string, count: number): Promise<number>;
  /** Creates claims, and binds them instead of Kubernetes' slow controller. */
  createMany(side: Side, prefix: string, count: number): Promise<void>;
  /** Waits until Stowage sends only periodic requests. Returns the requests since the last call. */
  settled(): Promise<ReadonlyMap<string, number>>;
}

export async function startBenchCluster(signal: AbortSignal): Promise<BenchCluster> {
  const tar = await buildImage(signal);
  await using stack = new AsyncDisposableStack();
  const { folder } = stack.use(createScratchFolder('st-bench-'));
  const audit = await createAudit(folder, `system:serviceaccount:${namespace}:stowage-controller`);
  // With the default limits, the benchmark would measure the binding controller.
  const controllerManager = ['--kube-api-qps=500', '--kube-api-burst=1000'];
  const cluster = stack.use(
    await startCluster(signal, {
      nodes: 1,
      folders: ['/var/lib/stowage'],
      args: { apiServer: audit.words, controllerManager },
    }),
  );
  // On a tmpfs if there is one, where only the programs count.
  const [place] = measuredFileSystems();
  if (place === undefined) throw new Error('there is no file system to measure on');
  const exported = stack.use(await makeFolder(place, []));
  const filer = stack.use(await startFiler(cluster, signal, exported.path));
  await cluster.importImage(tar, 'docker.io/library/stowage:bench');
  await installChart(cluster, filer.uri, signal);
  const share = await prioritizePods(cluster.folder);
  await cluster.apply(bareClass);
  const ways = new Map<Account, string>();
  const ca = join(cluster.folder, 'pki', 'ca.crt');
  for (const name of accounts) {
    await cluster.apply(...account(name));
    const token = await cluster.kubectl('create', 'token', name, '--duration=24h');
    ways.set(name, await accessOf(join(folder, name), { token, ca }));
  }
  const { inside } = cluster.network;
  const script = (file: URL, ...words: readonly string[]) =>
    [...inside, process.execPath, fileURLToPath(file), ...words] as const;
  const load = async <T>(what: string, side: Side, prefix: string, count: number): Promise<T> => {
    const words = [ways.get('load') ?? '', what, classOf[side], prefix, `${count}`];
    const late = AbortSignal.timeout(firstMs + count * eachMs);
    const ending = AbortSignal.any([signal, late]);
    const running = start(script(new URL('./load.ts', import.meta.url), ...words), ending);
    const output = text(running.stdout);
    const { status, errors } = await running.ended;
    if (late.aborted) throw new Error(`${what} of ${count} claims took too long: the provisioner may have ended`);
    if (status !== 0) throw new Error(`${what} ended with ${status}: ${errors}`);
    return JSON.parse(await output) as T;
  };
  const own = (...words: readonly string[]): Promise<string> => cluster.kubectl('--namespace', namespace, ...words);
  const all = stack.move();
  return {
    settled: () => settled(audit, signal),
    memoryOf: async (which) => await processOf(await pidOf(which, cluster), signal).restingMemory(),
    startProvisioner: async (side) => {
      if (side === 'bare') {
        const running = start(
          script(new URL('./bare.ts', import.meta.url), ways.get('bare') ?? '', classOf.bare),
          signal,
        );
        await share.join(running.pid);
        await running.printed('the loop watches');
        return { ...running, [Symbol.asyncDispose]: running.stop };
      }
      await own('scale', controller, '--replicas=1');
      await own('rollout', 'status', controller, '--timeout=100s');
      return {
        ...processOf(await pidOf('controller', cluster), signal),
        [Symbol.asyncDispose]: () => noController(cluster),
      };
    },
    create: (side, prefix, count) => load<Created>('create', side, prefix, count),
    remove: async (side, prefix, count) => {
      const what = side === 'bare' ? 'sweep' : 'remove';
      return (await load<{ readonly goneMs: number }>(what, side, prefix, count)).goneMs;
    },
    createMany: async (side, prefix, count) => {
      await cluster.controllerManager.stop();
      await load('bind', side, prefix, count);
      await cluster.controllerManager.start();
    },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

/** Installs both stores. No controller runs afterwards. */
async function installChart(cluster: Cluster, uri: string, signal: AbortSignal): Promise<void> {
  const { host, pathname, searchParams } = new URL(uri);
  const options = Object.fromEntries(searchParams);
  const nfs = { name: silver, uri: `nfs://${host}${pathname}`, options, storageClass: {} };
  const values = [
    '--set',
    'image.tag=bench,controller.replicas=1,defaultStore.storageClass.volumeBindingMode=Immediate',
    '--set-json',
    `stores=${JSON.stringify([nfs])}`,
    '--set',
    'logLevel=warn',
  ];
  const chart = join(repository, 'deploy', 'kubernetes', 'chart');
  const words = ['install', 'stowage', chart, '--namespace', namespace, '--create-namespace', ...values];
  const env = { HOME: cluster.folder, KUBECONFIG: cluster.kubeconfig };
  const helm = start([toolPath('helm'), ...words], signal, env);
  helm.stdout.resume();
  const { status, errors } = await helm.ended;
  if (status !== 0) throw new Error(`helm ended with ${status}: ${errors}`);
  for (const one of [controller, 'daemonset/stowage-agent'])
    await cluster.kubectl('--namespace', namespace, 'rollout', 'status', one, '--timeout=100s');
  await noController(cluster);
}

async function noController({ kubectl }: Cluster): Promise<void> {
  await kubectl('--namespace', namespace, 'scale', controller, '--replicas=0');
  const pods = '--selector=app.kubernetes.io/component=controller';
  await kubectl('--namespace', namespace, 'wait', '--for=delete', 'pod', pods, '--timeout=60s');
}

/** How to recognize the processes. A keeper starts as the same program and then changes its title. */
const started = {
  controller: /stowage\.mjs\0controller\0/,
  agent: /stowage\.mjs\0node\0/,
  keeper: /^stowage keeper(?:\0|$)/,
} as const;

/** The pid of the process in this cluster's pods. */
async function pidOf(which: keyof typeof started, { folder }: Cluster): Promise<number> {
  for (const name of await readdir('/proc')) {
    if (!/^[0-9]+$/.test(name)) continue;
    const [words = '', groups = ''] = await Promise.all(
      ['cmdline', 'cgroup'].map((file) => readFile(`/proc/${name}/${file}`, 'utf8').catch(() => '')),
    );
    if (started[which].test(words) && groups.includes(basename(folder))) return Number(name);
  }
  throw new Error(`there is no process of the ${which}`);
}

/** Stowage writes Events with low priority, so they may come late. */
async function settled(audit: Audit, signal: AbortSignal): Promise<ReadonlyMap<string, number>> {
  const counts = new Map<string, number>();
  for (let isQuiet = false; !isQuiet; ) {
    await delay(quietMs, undefined, { signal });
    isQuiet = true;
    for (const [what, times] of await audit.taken()) {
      isQuiet &&= periodicRequests.test(what);
      counts.set(what, (counts.get(what) ?? 0) + times);
    }
  }
  return counts;
}

/** Access to the API server's own address, without the forwarder. */
async function accessOf(path: string, { token, ca }: { readonly token: string; readonly ca: string }): Promise<string> {
  const server = `https://${addresses.controlPlane}:${addresses.apiPort}`;
  await writeFile(`${path}.json`, JSON.stringify({ server, token, ca }), { mode: 0o600 });
  return `${path}.json`;
}

const account = (name: Account): readonly object[] => [
  { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name, namespace: 'default' } },
  {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'ClusterRoleBinding',
    metadata: { name: `bench-${name}` },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'cluster-admin' },
    subjects: [{ kind: 'ServiceAccount', name, namespace: 'default' }],
  },
];

const bareClass = {
  apiVersion: 'storage.k8s.io/v1',
  kind: 'StorageClass',
  metadata: { name: classOf.bare },
  provisioner: classOf.bare,
  volumeBindingMode: 'Immediate',
  reclaimPolicy: 'Delete',
} as const;
