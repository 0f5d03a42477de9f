import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { repository } from '#testbed/component.ts';
import { buildImage } from '#testbed/image.ts';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import { importBusybox } from '#testbed/kubernetes/images.ts';
import { toolPath } from '#testbed/lacks.ts';
import { type ClusterDns, dnsArgs, startDns } from './chart-dns.ts';

export const chart = join(repository, 'deploy', 'kubernetes', 'chart');
export const namespace = 'stowage-system';

/** A real cluster of two nodes that has the Stowage image, and a real Helm. */
export interface ChartFixture extends AsyncDisposable {
  readonly cluster: Cluster;
  readonly dns: ClusterDns;
  readonly busybox: string;
  /** Runs Helm in Stowage's namespace. */
  helm(...words: readonly string[]): Promise<string>;
  /** Runs kubectl in Stowage's namespace. */
  namespacedKubectl(...words: readonly string[]): Promise<string>;
  /** Registers the address of the embedded NFS server. The DNS of a real cluster does that by itself. */
  registerInDns(): Promise<void>;
}

/** An image as a tar, and its tags. */
export interface TaggedImage {
  readonly tar: string;
  readonly tags: readonly string[];
}

/** Two tags of the image of these sources: versions that differ in name only. */
const twoTags = async (signal: AbortSignal): Promise<readonly TaggedImage[]> => [
  { tar: await buildImage(signal), tags: ['testbed', 'next'] },
];

export async function startChartFixture(signal: AbortSignal, images?: readonly TaggedImage[]): Promise<ChartFixture> {
  const imported = images ?? (await twoTags(signal));
  await using stack = new AsyncDisposableStack();
  const cluster = stack.use(
    await startCluster(signal, { nodes: 2, folders: ['/var/lib/stowage'], args: { kubelet: dnsArgs } }),
  );
  const dns = stack.use(await startDns(cluster, signal));
  for (const { tar, tags } of imported)
    await cluster.importImage(tar, ...tags.map((tag) => `docker.io/library/stowage:${tag}`));
  const busybox = await importBusybox(cluster, signal);
  const env = { PATH: process.env['PATH'], HOME: cluster.folder, KUBECONFIG: cluster.kubeconfig };
  const namespacedKubectl: ChartFixture['namespacedKubectl'] = (...words) =>
    cluster.kubectl('--namespace', namespace, ...words);
  const resources = stack.move();
  return {
    cluster,
    dns,
    busybox,
    namespacedKubectl: namespacedKubectl,
    helm: async (...words) => {
      const whole = [...words, '--namespace', namespace];
      return (await promisify(execFile)(toolPath('helm'), whole, { env, signal, timeout: 180_000 })).stdout;
    },
    registerInDns: async () => {
      const address = await namespacedKubectl('get', 'service', 'stowage-nfs', '--output=jsonpath={.spec.clusterIP}');
      await dns.setNames({ [`stowage-nfs.${namespace}.svc.cluster.local`]: address });
    },
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

/** The part of the Prometheus operator's CRD that the API server needs. */
export const serviceMonitors: object = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: {
    name: 'servicemonitors.monitoring.coreos.com',
    annotations: { 'api-approved.kubernetes.io': 'unapproved, for tests' },
  },
  spec: {
    group: 'monitoring.coreos.com',
    scope: 'Namespaced',
    names: {
      kind: 'ServiceMonitor',
      listKind: 'ServiceMonitorList',
      plural: 'servicemonitors',
      singular: 'servicemonitor',
    },
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        schema: {
          openAPIV3Schema: {
            type: 'object',
            properties: {
              spec: {
                type: 'object',
                required: ['selector', 'endpoints'],
                properties: {
                  selector: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
                  endpoints: {
                    type: 'array',
                    items: {
                      type: 'object',
                      properties: {
                        port: { type: 'string' },
                        path: { type: 'string' },
                        relabelings: {
                          type: 'array',
                          items: {
                            type: 'object',
                            properties: {
                              sourceLabels: { type: 'array', items: { type: 'string' } },
                              targetLabel: { type: 'string' },
                            },
                          },
                        },
                        interval: {
                          type: 'string',
                          pattern: '^(0|(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$',
                        },
                      },
                    },
                  },
                },
              },
            },
          },
        },
      },
    ],
  },
};

export interface ClaimOptions {
  readonly name: string;
  readonly storageClassName: string;
  readonly mode: 'ReadWriteOnce' | 'ReadWriteMany';
}

export const claim = ({ name, storageClassName, mode }: ClaimOptions): object => ({
  apiVersion: 'v1',
  kind: 'PersistentVolumeClaim',
  metadata: { name, namespace: 'default' },
  spec: { accessModes: [mode], storageClassName, resources: { requests: { storage: '64Mi' } } },
});

/** A Deployment with one pod that uses the claim of the same name. */
export const deployment = (name: string, image: string): object => ({
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name },
  spec: {
    replicas: 1,
    strategy: { type: 'Recreate' },
    selector: { matchLabels: { app: name } },
    template: {
      metadata: { labels: { app: name } },
      spec: {
        terminationGracePeriodSeconds: 0,
        containers: [
          {
            name: 'main',
            image,
            imagePullPolicy: 'IfNotPresent',
            command: ['sh', '-c', 'sleep 1000000'],
            volumeMounts: [{ name: 'data', mountPath: '/data' }],
          },
        ],
        volumes: [{ name: 'data', persistentVolumeClaim: { claimName: name } }],
      },
    },
  },
});

/** Kills the keeper and the data path of a node at the same time, so that its mounts are lost. */
export async function killKeeperAndAgent({ cluster, namespacedKubectl }: ChartFixture, node: number): Promise<void> {
  const { name, inside } = cluster.nodes[node] ?? {};
  const containerOf = async (component: string): Promise<string> => {
    const output = '--output=jsonpath={.items[0].status.containerStatuses[0].containerID}';
    const selectors = [`--selector=app.kubernetes.io/component=${component}`, `--field-selector=spec.nodeName=${name}`];
    return (await namespacedKubectl('get', 'pods', ...selectors, output)).replace('containerd://', '');
  };
  const components = ['agent', 'keeper'];
  const ids = await Promise.all(components.map(containerOf));
  const kill = ids.map((id) => `ctr --namespace k8s.io tasks kill --signal SIGKILL --all ${id} &`);
  await inside?.('sh', '-c', `${kill.join(' ')} wait`);
  for (const [index, component] of components.entries())
    await expect.poll(() => containerOf(component), { interval: 500, timeout: 150_000 }).not.toBe(ids[index]);
}

/** Kills the container of a pod with a single container. The kubelet restarts it. */
export async function killContainer({ cluster, namespacedKubectl }: ChartFixture, pod: string): Promise<void> {
  const output = '--output=jsonpath={.spec.nodeName} {.status.containerStatuses[0].containerID}';
  const [node, id = ''] = (await namespacedKubectl('get', 'pod', pod, output)).split(' ');
  const kill = ['ctr', '--namespace', 'k8s.io', 'tasks', 'kill', '--signal', 'SIGKILL', '--all'];
  await cluster.nodes.find(({ name }) => name === node)?.inside(...kill, id.replace('containerd://', ''));
}

/** Kills the agent process of a node as soon as it has staged one volume more than at the time of the call. */
export async function killMountingAgent({ cluster }: ChartFixture, node: number): Promise<void> {
  const lines = [
    'staged() { grep -c " /var/lib/stowage/mounts/" /proc/self/mountinfo; }',
    'before=$(staged)',
    // The brackets keep the pattern from matching the command line of this shell. The agent may still be starting.
    'agent() { for at in /proc/[0-9]*; do',
    `  if tr '\\0' ' ' <"$at/cmdline" 2>/dev/null | grep -q '[s]towage.mjs node --kubernetes'; then echo "\${at#/proc/}"; fi`,
    'done; }',
    'while [ -z "$(agent)" ]; do sleep 0.1; done',
    'while [ "$(staged)" -le "$before" ]; do sleep 0.01; done',
    // A child process of the agent has the agent's command line for a moment, and may be gone already.
    'while [ -z "$killed" ]; do for pid in $(agent); do kill -9 "$pid" 2>/dev/null && killed=yes; done; done',
  ];
  await cluster.nodes[node]?.inside('sh', '-c', lines.join('\n'));
}
