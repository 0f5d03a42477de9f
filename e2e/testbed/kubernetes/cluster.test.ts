import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync, readFileSync, rmSync } from 'node:fs';
import { basename } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { onPath } from '../component.ts';
import { lacks } from '../lacks.ts';
import { removeCgroups } from '../own-cgroups.ts';
import { runner } from '../run.ts';
import { type Cluster, startCluster } from './cluster.ts';
import { importBusybox } from './images.ts';
import { addresses } from './network.ts';

const { signal } = new AbortController();
const run = runner(signal);
const pollOptions = { timeout: 60_000 };

/** The text of a file of a process, which identifies the owner of the process. */
const textOf = (path: string): string => {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
};
const processesOf = (name: string): readonly string[] =>
  globSync('/proc/[0-9]*').filter((path) =>
    ['cmdline', 'cgroup'].some((file) => textOf(`${path}/${file}`).includes(name)),
  );
const remainsOf = (folder: string): readonly string[] => [
  ...globSync(folder),
  ...globSync(`/sys/fs/cgroup/{,*/}${basename(folder)}`),
  ...textOf('/proc/self/mountinfo')
    .split('\n')
    .filter((line) => line.includes(folder)),
  ...processesOf(basename(folder)),
];

/** State of this machine that a cluster could change, without objects that have the cluster's name. */
const machineState = async () => ({
  kernel: ['vm/overcommit_memory', 'kernel/panic', 'kernel/panic_on_oops', 'net/ipv4/ip_forward'].map((name) =>
    textOf(`/proc/sys/${name}`),
  ),
  // Excludes the interfaces of other tests, which have other names, and of a Docker engine, whose names have seven
  // digits.
  interfaces: textOf('/proc/net/dev').match(/^ *(switch|port\d+|eth0|veth[0-9a-f]{8}|kube\S*):/gm),
  rules: (await run(onPath('iptables-save') ?? 'iptables-save', [])).match(/^.*KUBE.*$/gm),
  folders: globSync([
    '/var/lib/kubelet',
    '/usr/libexec/kubernetes',
    '/run/kubernetes',
    '/var/log/pods',
    '/run/netns/cni-*',
  ]),
});

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox'))('a Kubernetes cluster', () => {
  let before: Awaited<ReturnType<typeof machineState>>;
  let cluster: Cluster;
  let image: string;

  beforeAll(async () => {
    before = await machineState();
    cluster = await startCluster(signal, {
      nodes: 2,
      args: { controllerManager: ['--node-monitor-grace-period=20s'] },
    });
    image = await importBusybox(cluster, signal);
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    expect({ left: remainsOf(cluster.folder), ...(await machineState()) }).toEqual({ left: [], ...before });
  });

  const pod = (name: string, node: number, script: string, more: object = {}, container: object = {}): object => ({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, labels: { app: name } },
    spec: {
      nodeName: cluster.nodes[node]?.name,
      terminationGracePeriodSeconds: 0,
      containers: [{ name: 'main', image, command: ['sh', '-c', script], ...container }],
      ...more,
    },
  });
  const waitUntilReady = (...names: readonly string[]): Promise<string> =>
    cluster.kubectl('wait', '--for=condition=Ready', '--timeout=60s', ...names.map((name) => `pod/${name}`));
  const exec = (name: string, ...words: readonly string[]): Promise<string> =>
    cluster.kubectl('exec', name, '--', ...words);
  const nodesThatAre = async (status: string): Promise<readonly string[]> => {
    const statusPath = '{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}';
    const output = await cluster.kubectl('get', 'nodes', '--output', `jsonpath=${statusPath}`);
    return output.split(' ').flatMap((word) => (word.endsWith(`=${status}`) ? [word.split('=')[0] ?? ''] : []));
  };

  test('has ready nodes, each with its own address', async () => {
    expect(await nodesThatAre('True')).toEqual(['node-1', 'node-2']);
    const addressPath = '{.items[*].status.addresses[?(@.type=="InternalIP")].address}';
    expect(await cluster.kubectl('get', 'nodes', '--output', `jsonpath=${addressPath}`)).toBe('10.77.0.2 10.77.0.3');
  });

  test('has pods that reach each other, and the API server by its service address', async () => {
    const serve = 'mkdir /www && echo "$HOSTNAME" >/www/index.html && exec httpd -f -p 8080 -h /www';
    await cluster.apply(...['one', 'two'].map((name, node) => pod(name, node, serve)));
    await waitUntilReady('one', 'two');
    const address = (name: string): Promise<string> =>
      cluster.kubectl('get', 'pod', name, '--output', 'jsonpath={.status.podIP}');
    // Without the option `-T`, which makes this busybox crash.
    const get = (from: string, url: string): Promise<string> =>
      exec(from, 'timeout', '5', 'wget', '-q', '-O', '-', url);
    expect(await get('one', `http://${await address('two')}:8080`)).toBe('two');
    expect(await get('two', `http://${await address('one')}:8080`)).toBe('one');
    // Kubernetes sets these variables in every pod. HTTPS is impossible: this busybox and the API server have no common
    // cipher.
    const rawRequestScript =
      "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT";
    for (const name of ['one', 'two']) {
      expect(await exec(name, 'sh', '-c', 'echo $KUBERNETES_SERVICE_HOST')).toBe(addresses.apiService);
      expect(await exec(name, 'sh', '-c', rawRequestScript)).toContain(
        'Client sent an HTTP request to an HTTPS server',
      );
    }
    await cluster.kubectl('expose', 'pod', 'two', '--port=80', '--target-port=8080', '--name=behind');
    const serviceAddress = await cluster.kubectl('get', 'service', 'behind', '--output', 'jsonpath={.spec.clusterIP}');
    // Also from the pod to which the Service routes.
    for (const name of ['one', 'two'])
      await expect.poll(() => get(name, `http://${serviceAddress}`).catch(String), pollOptions).toBe('two');
  });

  test('has host-network pods with the name and address of their node', async () => {
    await cluster.apply(pod('outright', 1, 'sleep 1000', { hostNetwork: true }));
    await waitUntilReady('outright');
    expect(await exec('outright', 'hostname')).toBe('node-2');
    expect(await exec('outright', 'ip', 'address')).toContain(cluster.nodes[1]?.address);
  });

  test('propagates mounts of a privileged pod to the node and to other pods there', async () => {
    const folder = { name: 'shared', hostPath: { path: '/var/lib/kubelet/plugins/shared', type: 'DirectoryOrCreate' } };
    const sharedMount = (mountPropagation: string) => ({
      volumeMounts: [{ name: 'shared', mountPath: '/s', mountPropagation }],
    });
    const reader = pod('reader', 0, 'sleep 1000', { volumes: [folder] }, sharedMount('HostToContainer'));
    await cluster.apply(reader);
    await waitUntilReady('reader');
    const script = 'mkdir /s/a && mount -t tmpfs stowage-test /s/a && echo mounted >/s/a/file && sleep 1000';
    const privileged = { ...sharedMount('Bidirectional'), securityContext: { privileged: true } };
    await cluster.apply(pod('mounter', 0, script, { volumes: [folder] }, privileged));
    await waitUntilReady('mounter');
    await expect.poll(() => exec('reader', 'cat', '/s/a/file').catch(String), pollOptions).toBe('mounted');
    const [one, two] = cluster.nodes;
    expect(await one?.inside('cat', `${folder.hostPath.path}/a/file`)).toBe('mounted');
    expect(globSync(`${one?.folder}/**/shared/a/*`)).toEqual([]);
    await expect(two?.inside('ls', folder.hostPath.path)).rejects.toThrow('No such file');
    await cluster.kubectl('delete', 'pod', 'mounter', 'reader', '--wait');
    // The mount now belongs to the node.
    await one?.inside('umount', `${folder.hostPath.path}/a`);
  });

  test('works again after an outage of its API server', async () => {
    await cluster.apiServer.stop();
    await expect(cluster.kubectl('get', 'nodes', '--request-timeout=5s')).rejects.toThrow();
    await cluster.apiServer.start();
    await expect.poll(() => nodesThatAre('True').catch(String), pollOptions).toEqual(['node-1', 'node-2']);
    await expect
      .poll(() => cluster.apply(pod('after-api', 1, 'sleep 1000')).catch(String), pollOptions)
      .toBe('pod/after-api created');
    await waitUntilReady('after-api');
  });

  test('keeps its pods when a kubelet restarts, and the kubelet can still end them', async () => {
    const [, two] = cluster.nodes;
    await cluster.apply(pod('survivor', 1, 'echo $RANDOM-$$ >/tmp/id && sleep 1000'));
    await waitUntilReady('survivor');
    const id = await exec('survivor', 'cat', '/tmp/id');
    await two?.restartKubelet();
    await expect.poll(() => exec('survivor', 'cat', '/tmp/id').catch(String), pollOptions).toBe(id);
    await two?.killKubelet();
    await cluster.kubectl('delete', 'pod', 'survivor', '--wait=false');
    await two?.startKubelet();
    await cluster.kubectl('wait', '--for=delete', 'pod/survivor', '--timeout=60s');
  });

  test('has nodes that keep running while they are disconnected, and that rejoin', async () => {
    const [one] = cluster.nodes;
    await cluster.apply(pod('alone', 0, 'sleep 1000'));
    await waitUntilReady('alone');
    await one?.cutOff();
    await expect.poll(() => nodesThatAre('Unknown'), pollOptions).toEqual(['node-1']);
    expect(await one?.inside('ctr', '--namespace', 'k8s.io', 'tasks', 'ls', '--quiet')).not.toBe('');
    await one?.reconnect();
    await expect.poll(() => nodesThatAre('True'), pollOptions).toEqual(['node-1', 'node-2']);
    expect(await exec('alone', 'echo', 'still here')).toBe('still here');
  }, 150_000);

  test('keeps its other node when a node is lost', async () => {
    const [one] = cluster.nodes;
    const firstNodeCgroup = `${basename(cluster.folder)}/node-1`;
    expect(processesOf(firstNodeCgroup)).not.toEqual([]);
    await one?.killNode();
    expect(processesOf(firstNodeCgroup)).toEqual([]);
    await cluster.apply(pod('on-the-other', 1, 'sleep 1000'));
    await waitUntilReady('on-the-other');
  });
});

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox'))(
  'a test process that is killed',
  () => {
    test('ends its cluster, too', async () => {
      const program = `
      import { startCluster } from '#testbed/kubernetes/cluster.ts';
      const cluster = await startCluster(new AbortController().signal, { nodes: 1 });
      console.log(cluster.folder);`;
      const flags = ['--input-type=module', '--disable-warning=ExperimentalWarning', '--eval', program];
      const child = spawn(process.execPath, flags, { stdio: ['ignore', 'pipe', 'inherit'] });
      const ended = once(child, 'exit');
      const [output] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string];
      const folder = output.trim();
      onTestFinished(() => {
        removeCgroups(basename(folder));
        rmSync(folder, { recursive: true, force: true });
      });
      expect(processesOf(basename(folder)).length).toBeGreaterThan(0);
      child.kill('SIGKILL');
      await ended;
      await expect.poll(() => processesOf(basename(folder))).toEqual([]);
    });
  },
);
