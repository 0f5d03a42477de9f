import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { type EventEmitter, once } from 'node:events';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseAllDocuments } from 'yaml';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import { type Forward, startForward } from '#testbed/kubernetes/forward.ts';
import { addresses } from '#testbed/kubernetes/network.ts';
import { program } from '../stowage.ts';
import { type Filer, startFiler } from './agent-filer.ts';

export const namespace = 'stowage-system';
const pod = 'stowage-controller-0';
const controllerPort = 8443;
const outputLimitMs = 45_000;
const deploy = join(import.meta.dirname, '..', '..', 'deploy', 'kubernetes');
const definition = join(deploy, 'crds', 'stores.yaml');
const manifests = join(deploy, 'stowage.yaml');

export interface CommandResult {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

export interface HttpAnswer {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: an answer of any route
  readonly body: any;
}

/** A cluster and a controller process with its TLS server, and clients of that server. */
export interface KubectlStowageFixture extends AsyncDisposable {
  readonly cluster: Cluster;
  readonly filer: Filer;
  /**
   * A kubeconfig of a service account in the namespace `default`. The account has no rights until a test grants some.
   */
  kubeconfigOf(account: string): Promise<string>;
  token(account: string, audience?: string): Promise<string>;
  /** Runs `kubectl stowage` as kubectl does. */
  stowage(kubeconfig: string, ...words: readonly string[]): Promise<CommandResult>;
  /** Calls the controller directly, without the API server's proxy. */
  callController(
    method: string,
    path: string,
    headers: Readonly<Record<string, string>>,
    body?: object,
  ): Promise<HttpAnswer>;
  /** Runs the agent of the first node as a process of this machine. Resolves when the controller is connected to it. */
  startAgent(): Promise<Agent>;
  stopController(): Promise<void>;
}

export interface Agent {
  /** Runs the CLI on the agent's socket. */
  stowage(...words: readonly string[]): Promise<CommandResult>;
}

const kinds = ['Namespace', 'ServiceAccount', 'Role', 'RoleBinding', 'ClusterRole', 'ClusterRoleBinding', 'Service'];

/** The chart's objects for users, as Helm renders them. */
async function chartObjects(): Promise<readonly object[]> {
  const all = parseAllDocuments(await readFile(manifests, 'utf8'));
  return all
    .map((document) => document.toJS() as { readonly kind?: string } | null)
    .flatMap((object) => (object !== null && kinds.includes(object.kind ?? '') ? [object] : []));
}

const objects: readonly object[] = [
  // The controller is a process of this machine, and the API server's proxy needs a pod with its address.
  {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: pod, namespace },
    spec: { schedulerName: 'none', containers: [{ name: 'main', image: 'none' }] },
  },
];

export const roleBinding = (role: string, account: string, inNamespace: string): object => ({
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'ClusterRoleBinding',
  metadata: { name: `${role}-${account}` },
  roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: role },
  subjects: [{ kind: 'ServiceAccount', name: account, namespace: inNamespace }],
});

export async function startKubectlStowageFixture(signal: AbortSignal): Promise<KubectlStowageFixture> {
  await using stack = new AsyncDisposableStack();
  const folder = await mkdtemp(join(tmpdir(), 'st-kubectl-'));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const cluster = stack.use(await startCluster(signal, { nodes: 1 }));
  const filer = stack.use(await startFiler(cluster, signal));
  await cluster.kubectl('apply', '--filename', definition);
  await cluster.apply(...(await chartObjects()), ...objects);
  const address = { podIP: addresses.controlPlane, podIPs: [{ ip: addresses.controlPlane }] };
  const patch = ['--subresource=status', '--type=merge', '--patch', JSON.stringify({ status: address })];
  await cluster.kubectl('patch', 'pod', pod, '--namespace', namespace, ...patch);
  const controlPlaneKubeconfig = await controlPlaneConfig(cluster, folder);
  const [first, ...enterArgs] = cluster.network.inside;
  const children: ChildProcess[] = [];
  stack.defer(async () => {
    for (const child of children) await end(child, 'SIGKILL');
  });
  const start = (name: string, env: object, ...words: readonly string[]): ChildProcess => {
    const child = spawn(first, [...enterArgs, program, ...words, '--log-level', 'info'], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
    });
    children.push(child);
    for (const stream of [child.stdout, child.stderr])
      stream?.setEncoding('utf8').on('data', (text: string) => {
        output[name] = (output[name] ?? '') + text;
      });
    return child;
  };
  const output: Record<string, string> = {};
  const waitForOutput = async (name: string, child: ChildProcess, text: string): Promise<void> => {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(outputLimitMs)]);
    while (!(output[name] ?? '').includes(text)) {
      const more = [once(child.stdout as EventEmitter, 'data', { signal: limit })];
      more.push(once(child.stderr as EventEmitter, 'data', { signal: limit }));
      const ended = once(child, 'exit', { signal: limit }).then(() => limit.throwIfAborted());
      await Promise.race([...more, ended]).catch((cause: unknown) => {
        throw new Error(`${name} did not say '${text}':\n${JSON.stringify(output, undefined, 1)}`, { cause });
      });
      if (child.exitCode !== null) throw new Error(`${name} ended:\n${output[name]}`);
    }
  };
  const common = ['--kubeconfig', controlPlaneKubeconfig, '--namespace', namespace];
  const listen = `${addresses.controlPlane}:${controllerPort}`;
  const state = ['--state', join(folder, 'c')];
  const env = { POD_NAME: pod, POD_IP: addresses.controlPlane };
  const controller = start('controller', env, 'controller', ...common, ...state, '--listen', listen);
  await waitForOutput('controller', controller, 'the Service points to this process');
  const forward = stack.use(
    await startForward(cluster.network.inside, { host: addresses.controlPlane, port: controllerPort }, 'door'),
  );
  const token = (account: string, audience?: string): Promise<string> =>
    cluster.kubectl('create', 'token', account, ...(audience === undefined ? [] : ['--audience', audience]));
  const resources = stack.move();
  return {
    cluster,
    filer,
    token,
    kubeconfigOf: async (account) => await writeConfig(cluster, folder, account, { token: await token(account) }),
    stowage: (kubeconfig, ...words) =>
      run(program.replace(/stowage$/, 'kubectl-stowage'), words, { KUBECONFIG: kubeconfig, HOME: folder }),
    callController: (method, path, headers, body) => sendRequest(forward, method, path, headers, body),
    startAgent: async () => {
      const socket = join(folder, 'a', 'stowage.sock');
      const tokenFile = join(folder, 'agent-token');
      await writeFile(tokenFile, await agentToken(cluster));
      const words = ['node', '--kubernetes', ...common, '--state', join(folder, 'a'), '--socket', socket];
      const disabledOptions = [
        '--plugins',
        'none',
        '--docker-socket',
        'none',
        '--podman-socket',
        'none',
        '--config',
        'none',
      ];
      const kubelet = ['--kubelet', join(folder, 'k'), '--node-name', cluster.nodes[0]?.name ?? ''];
      for (const part of ['k/plugins', 'k/plugins_registry']) await mkdir(join(folder, part), { recursive: true });
      start('agent', { STOWAGE_CONTROLLER_TOKEN_FILE: tokenFile }, ...words, ...disabledOptions, ...kubelet);
      await waitForOutput('controller', controller, 'an agent is connected');
      return { stowage: (...more) => run(program, more, { STOWAGE_SOCKET: socket, HOME: folder }) };
    },
    stopController: () => end(controller, 'SIGTERM'),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

async function end(child: ChildProcess, signalName: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, 'exit');
  child.kill(signalName);
  await ended;
}

/**
 * The token of an agent, as Kubernetes projects it into the agent's pod. The pod is bound to the node and has no other
 * content.
 */
async function agentToken(cluster: Cluster): Promise<string> {
  const name = 'stowage-agent-0';
  await cluster.apply({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace },
    spec: {
      nodeName: cluster.nodes[0]?.name,
      serviceAccountName: 'stowage-agent',
      containers: [{ name: 'main', image: 'none', imagePullPolicy: 'Never' }],
    },
  });
  const to = ['--bound-object-kind', 'Pod', '--bound-object-name', name, '--audience', 'stowage.dev/controller'];
  return await cluster.kubectl('create', 'token', 'stowage-agent', '--namespace', namespace, ...to);
}

interface Config {
  clusters: { name: string; cluster: { server: string } }[];
  users: object[];
  contexts: object[];
  'current-context': string;
}

const adminConfig = async (cluster: Cluster): Promise<Config> =>
  JSON.parse(await readFile(cluster.kubeconfig, 'utf8')) as Config;

/** A kubeconfig for a process in the control plane's network. */
async function controlPlaneConfig(cluster: Cluster, folder: string): Promise<string> {
  const config = await adminConfig(cluster);
  const server = `https://${addresses.controlPlane}:${addresses.apiPort}`;
  const clusters = config.clusters.map((entry) => ({ ...entry, cluster: { ...entry.cluster, server } }));
  const path = join(folder, 'inside');
  await writeFile(path, JSON.stringify({ ...config, clusters }), { mode: 0o600 });
  return path;
}

async function writeConfig(cluster: Cluster, folder: string, name: string, user: object): Promise<string> {
  const config = await adminConfig(cluster);
  const contexts = [{ name, context: { cluster: config.clusters[0]?.name, user: name } }];
  const path = join(folder, `kubeconfig-${name}`);
  const text = JSON.stringify({ ...config, users: [{ name, user }], contexts, 'current-context': name });
  await writeFile(path, text, { mode: 0o600 });
  return path;
}

async function run(
  file: string,
  words: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<CommandResult> {
  const { promise, resolve } = Promise.withResolvers<CommandResult>();
  execFile(file, words, { env: { PATH: process.env['PATH'], ...env }, timeout: 60_000 }, (error, stdout, stderr) => {
    const status = error === null ? 0 : typeof error.code === 'number' ? error.code : -1;
    resolve({ status, stdout, stderr });
  });
  return await promise;
}

async function sendRequest(
  to: Forward,
  method: string,
  path: string,
  headers: Readonly<Record<string, string>>,
  body?: object,
): Promise<HttpAnswer> {
  const { promise, resolve, reject } = Promise.withResolvers<HttpAnswer>();
  const type = body === undefined ? {} : { 'content-type': 'application/json' };
  const options = { host: to.host, port: to.port, method, path, rejectUnauthorized: false, agent: false };
  const sent = request({ ...options, headers: { ...type, ...headers } }, (answer) => {
    let text = '';
    answer.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
    });
    answer.on('end', () =>
      resolve({ status: answer.statusCode ?? 0, body: text === '' ? undefined : parseJson(text) }),
    );
  });
  sent.on('error', reject);
  sent.end(body === undefined ? undefined : JSON.stringify(body));
  return await promise;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
