import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, readFile, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { removeCgroups } from '../own-cgroups.ts';
import { runner } from '../run.ts';
import { type ApiGet, createApiGet } from './api-request.ts';
import { binaries } from './build.ts';
import { type Authority, makeAuthority } from './certificates.ts';
import { type ControlPlane, type ControlPlaneArgs, startControlPlane } from './control-plane.ts';
import { type Forward, startForward } from './forward.ts';
import { pauseTar } from './images.ts';
import { addresses, type ClusterNetwork, startNetwork } from './network.ts';
import { type Node, startNode } from './node.ts';

const commandTimeoutMs = 120_000;
/** The limit until all nodes are ready on a busy machine. */
const startTimeoutMs = 90_000;

export interface Cluster extends AsyncDisposable, Pick<ControlPlane, 'apiServer' | 'controllerManager' | 'scheduler'> {
  /** The folder of all its files. Its path also identifies the cluster. */
  readonly folder: string;
  /** The administrator's kubeconfig, for programs on this machine. */
  readonly kubeconfig: string;
  readonly nodes: readonly Node[];
  /** The control plane's network. Nodes and pods reach servers there on `addresses.controlPlane`. */
  readonly network: Pick<ClusterNetwork, 'inside'>;
  kubectl(...words: readonly string[]): Promise<string>;
  /** `kubectl apply` of objects. */
  apply(...objects: readonly object[]): Promise<string>;
  /** Imports an image on all nodes, under its own names and the given ones. */
  importImage(tar: string, ...names: readonly string[]): Promise<void>;
  /** The log of a program: `kube-apiserver`, `node-1-kubelet` and so on. */
  logOf(program: string): string;
}

export interface ClusterOptions {
  readonly nodes?: number;
  /** More node folders that must be on the disk, and not on an overlay of this machine's files. */
  readonly folders?: readonly string[];
  readonly args?: ControlPlaneArgs & { readonly kubelet?: readonly string[] };
}

export async function startCluster(signal: AbortSignal, options: ClusterOptions = {}): Promise<Cluster> {
  const { nodes: count = 2, folders = [], args = {} } = options;
  await using stack = new AsyncDisposableStack();
  const top = await realpath(await mkdtemp(join(tmpdir(), 'st-k8s-')));
  stack.defer(() => rm(top, { recursive: true, force: true }));
  // Users of pods must be able to traverse the folder to the node's files.
  await chmod(top, 0o711);
  for (const name of ['pki', 'log']) await mkdir(join(top, name), { mode: 0o700 });
  const group = basename(top);
  stack.defer(() => removeCgroups(group));
  const bin = binaries();
  const network = stack.use(await startNetwork(top, signal));
  const forward = stack.use(
    await startForward(network.inside, { host: addresses.controlPlane, port: addresses.apiPort }, group),
  );
  const authority = await makeAuthority(join(top, 'pki'), runner(signal));
  const kubeconfig = await issueCertificates(authority, forward);
  const common = { count, top, group, bin, folders, network, authority, signal, kubeletArgs: args.kubelet ?? [] };
  const kubectl = createKubectl(join(bin, 'kubectl'), kubeconfig, top, signal);
  const get = await createApiGet({
    host: forward.host,
    port: forward.port,
    authority: authority.certificate,
    ...authority.files('admin'),
  });
  const waitForApi = (): Promise<void> => pollUntil(signal, async (limit) => (await get('/readyz', limit)) === 'ok');
  const pause = await pauseTar(signal);
  const nodeStarts = Array.from({ length: count }, async (_, index) => {
    const node = stack.use(await startNode({ ...common, number: index + 1 }));
    await node.importImage(pause);
    return node;
  });
  const controlPlaneStart = startControlPlane({
    folder: top,
    bin,
    network,
    authority,
    args,
    waitForApi: waitForApi,
    signal,
  });
  // If one fails, waits for the others, because the programs that they started must be stopped.
  await Promise.allSettled([controlPlaneStart.then((it) => stack.use(it)), ...nodeStarts]);
  const controlPlane = await controlPlaneStart;
  const nodes = await Promise.all(nodeStarts);
  await Promise.all(nodes.map((node) => node.join()));
  try {
    await pollUntil(signal, async (limit) => (await countReadyNodes(get, limit)) === count);
    await pollUntil(signal, async (limit) => {
      // Without this account, the API server admits no pods.
      await get('/api/v1/namespaces/default/serviceaccounts/default', limit);
      return true;
    });
  } catch (cause) {
    throw new Error(`the nodes did not become ready:\n${await lastErrors(join(top, 'log'))}`, { cause });
  }
  const resources = stack.move();
  const { apiServer, controllerManager, scheduler } = controlPlane;
  return {
    folder: top,
    kubeconfig,
    nodes,
    network,
    apiServer,
    controllerManager,
    scheduler,
    kubectl: (...words) => kubectl(undefined, ...words),
    apply: (...items) => {
      const list = JSON.stringify({ apiVersion: 'v1', kind: 'List', items });
      return kubectl(list, 'apply', '--filename', '-');
    },
    importImage: async (tar, ...names) => {
      await Promise.all(nodes.map((node) => node.importImage(tar, ...names)));
    },
    logOf: (program) => join(top, 'log', program),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

/** Issues all certificates except for nodes. Returns the administrator's kubeconfig, which uses the forwarder. */
async function issueCertificates(authority: Authority, forward: Forward): Promise<string> {
  const dnsNames = ['kubernetes', 'kubernetes.default', 'kubernetes.default.svc'].map((name) => `DNS:${name}`);
  const ipAddresses = ['127.0.0.1', addresses.controlPlane, addresses.apiService, forward.host].map((ip) => `IP:${ip}`);
  await Promise.all([
    authority.issue('apiserver', { user: 'kube-apiserver', names: [...dnsNames, ...ipAddresses] }),
    authority.issue('accounts', { user: 'service-accounts' }),
    authority.issue('admin', { user: 'admin', group: 'system:masters' }),
    ...['controller-manager', 'scheduler'].map((name) => authority.issue(name, { user: `system:kube-${name}` })),
  ]);
  const server = `https://${addresses.controlPlane}:${addresses.apiPort}`;
  for (const name of ['controller-manager', 'scheduler']) await authority.kubeconfig(name, server);
  return await authority.kubeconfig('admin', `https://${forward.host}:${forward.port}`);
}

type Kubectl = (input: string | undefined, ...words: readonly string[]) => Promise<string>;

function createKubectl(program: string, kubeconfig: string, home: string, signal: AbortSignal): Kubectl {
  return async (input, ...words) => {
    const pendingCall = promisify(execFile)(program, ['--kubeconfig', kubeconfig, ...words], {
      // Hides the user's own settings and caches.
      env: { PATH: process.env['PATH'], HOME: home },
      maxBuffer: 64 * 1024 * 1024,
      signal,
      timeout: commandTimeoutMs,
    });
    pendingCall.child.stdin?.end(input);
    return (await pendingCall).stdout.trimEnd();
  };
}

async function countReadyNodes(get: ApiGet, signal: AbortSignal): Promise<number> {
  const { items }: NodeList = JSON.parse(await get('/api/v1/nodes', signal));
  return items.filter(({ status }) =>
    status.conditions?.some((condition) => condition.type === 'Ready' && condition.status === 'True'),
  ).length;
}

interface NodeList {
  readonly items: readonly {
    readonly status: { readonly conditions?: readonly { readonly type: string; readonly status: string }[] };
  }[];
}

/** Polls until the condition holds. An error counts as false. */
async function pollUntil(signal: AbortSignal, condition: (limit: AbortSignal) => Promise<boolean>): Promise<void> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(startTimeoutMs)]);
  for (;;) {
    try {
      if (await condition(limit)) return;
      limit.throwIfAborted();
    } catch (cause) {
      if (limit.aborted) throw new Error('the cluster did not become ready', { cause });
    }
    await delay(100);
  }
}

/** The last errors in the logs, which are deleted with the cluster. */
async function lastErrors(folder: string): Promise<string> {
  const names = (await readdir(folder)).filter((name) => name.startsWith('node-'));
  const last = names.map(async (name) => {
    const lines = (await readFile(join(folder, name), 'utf8')).split('\n');
    return lines
      .filter((line) => line.startsWith('E') || line.includes('level=error'))
      .slice(-5)
      .map((line) => `${name}: ${line}`);
  });
  return (await Promise.all(last)).flat().join('\n');
}
