import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { onPath } from '../component.ts';
import { type Machine, type MachineProcess, runInside, startInside } from '../machine.ts';
import { removeCgroups } from '../own-cgroups.ts';
import type { Authority } from './certificates.ts';
import { addresses, type ClusterNetwork } from './network.ts';
import { cniPlugins, containerdConfig, kubeletConfig, podNetwork, proxyArgs } from './node-config.ts';
import { startNodeMachine } from './node-machine.ts';

export interface Node extends AsyncDisposable, Pick<Machine, 'beside'> {
  readonly name: string;
  readonly address: string;
  /** The node's root folder on this machine, without the node's mounts. */
  readonly folder: string;
  /** Runs a program in the kubelet's mount namespace, and returns its output. */
  inside(...words: readonly string[]): Promise<string>;
  /** Imports an image under its own names and the given ones. */
  importImage(tar: string, ...names: readonly string[]): Promise<void>;
  /** Stops the kubelet. The pods of the node keep running. */
  stopKubelet(): Promise<void>;
  killKubelet(): Promise<void>;
  startKubelet(): Promise<void>;
  restartKubelet(): Promise<void>;
  /** Disconnects the node from the API server and all other nodes. The node and its pods keep running. */
  cutOff(): Promise<void>;
  reconnect(): Promise<void>;
  /** Ends the node like a power failure: all its processes and mounts are gone at once. It can't be started again. */
  killNode(): Promise<void>;
}

export interface NodeOptions {
  readonly number: number;
  readonly count: number;
  /** The folder of the cluster. */
  readonly top: string;
  /** The cgroup of the cluster. */
  readonly group: string;
  /** The folder of the programs. */
  readonly bin: string;
  readonly folders: readonly string[];
  readonly kubeletArgs: readonly string[];
  readonly network: ClusterNetwork;
  readonly authority: Authority;
  readonly signal: AbortSignal;
}

/** Sets the host name that host-network pods see. */
const setHostname = ['unshare', '--uts', 'sh', '-c', 'hostname "$1" && shift && exec "$@"', 'sh'];

/** A node of a cluster that is starting. */
export interface NewNode extends Node {
  /** Starts the kubelet, which registers the node. The API server must be running. */
  join(): Promise<void>;
}

/** Starts a node that can run containers. */
export async function startNode(options: NodeOptions): Promise<NewNode> {
  const { number, count, top, bin, network, authority, signal } = options;
  const name = `node-${number}`;
  const address = addresses.node(number);
  await using stack = new AsyncDisposableStack();
  const folder = join(top, name);
  const group = `${options.group}/${name}`;
  const temporary = join(folder, 'tmp');
  for (const part of [join(folder, 'etc'), temporary]) await mkdir(part, { recursive: true });
  stack.defer(() => removeCgroups(group));
  const machine = stack.use(
    await startNodeMachine({ number, count, folder, group, folders: options.folders, network }, signal),
  );
  const writeConfigFile = async (called: string, content: object | string): Promise<string> => {
    const path = join(folder, 'etc', called);
    await writeFile(path, typeof content === 'string' ? content : JSON.stringify(content));
    return path;
  };
  const cniConfigFolder = join(folder, 'etc', 'net.d');
  await mkdir(cniConfigFolder);
  await writeFile(join(cniConfigFolder, '10-testbed.conflist'), JSON.stringify(podNetwork(addresses.podsOf(number))));
  const startNodeProgram = (called: string, command: readonly string[], ready: string): Promise<MachineProcess> =>
    startInside(machine, {
      command: [...setHostname, name, ...command],
      // With sbin, because an ordinary user's PATH may lack iptables. With a TMPDIR of the node, because a program that
      // is killed while it starts a process in a container leaves a file there.
      env: { PATH: `${process.env['PATH']}:/usr/sbin:/sbin`, TMPDIR: temporary },
      logFile: join(top, 'log', `${name}-${called}`),
      isReady: (log) => log.includes(ready),
      signal,
    });
  const containerd = await writeConfigFile(
    'containerd.toml',
    containerdConfig(cniConfigFolder, cniPlugins() ?? '/usr/lib/cni'),
  );
  await startNodeProgram(
    'containerd',
    [onPath('containerd') ?? 'containerd', '--config', containerd],
    'successfully booted',
  );
  const identity = { user: `system:node:${name}`, group: 'system:nodes' };
  const serverCertificate = await authority.issue(name, { ...identity, names: [`IP:${address}`, `DNS:${name}`] });
  const server = `https://${addresses.controlPlane}:${addresses.apiPort}`;
  const kubeconfig = await authority.kubeconfig(name, server);
  const config = await writeConfigFile(
    'kubelet.json',
    kubeletConfig({ group, authority, serverCertificate: serverCertificate }),
  );
  let kubelet: MachineProcess | undefined;
  const startKubelet = async (): Promise<void> => {
    const words = [`--config=${config}`, `--kubeconfig=${kubeconfig}`, `--hostname-override=${name}`];
    const more = [`--node-ip=${address}`, ...options.kubeletArgs];
    kubelet = await startNodeProgram('kubelet', [join(bin, 'kubelet'), ...words, ...more], 'Started kubelet');
  };
  await authority.issue(`${name}-proxy`, { user: 'system:kube-proxy' });
  const proxyConfig = await authority.kubeconfig(`${name}-proxy`, server);
  const startProxy = async (): Promise<void> => {
    await startNodeProgram(
      'kube-proxy',
      [join(bin, 'kube-proxy'), ...proxyArgs(name, proxyConfig)],
      'Caches are synced',
    );
  };
  const resources = stack.move();
  const inside = (...words: readonly string[]): Promise<string> => runInside(machine, ...words);
  return {
    name,
    address,
    folder,
    inside,
    startKubelet,
    beside: machine.beside,
    importImage: async (tar, ...names) => {
      const images = ['ctr', '--namespace', 'k8s.io', 'images'];
      const output = await inside(...images, 'import', tar);
      const importedName = /^unpacking (\S+)/m.exec(output)?.[1];
      if (importedName === undefined) throw new Error(`${tar} holds no image: ${output}`);
      for (const other of names) await inside(...images, 'tag', '--force', importedName, other);
    },
    join: async () => {
      await Promise.all([startKubelet(), startProxy()]);
    },
    stopKubelet: async () => await kubelet?.stop(),
    killKubelet: async () => await kubelet?.kill(),
    restartKubelet: async () => {
      await kubelet?.stop();
      await startKubelet();
    },
    cutOff: () => network.setCable(number, 'down'),
    reconnect: () => network.setCable(number, 'up'),
    killNode: () => resources.disposeAsync(),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}
