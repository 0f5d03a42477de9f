import { buildImage, imageName } from '#testbed/image.ts';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import { importBusybox } from '#testbed/kubernetes/images.ts';
import { type Filer, startFiler } from './agent-filer.ts';
import { agentLabels, agentObjects, namespace } from './agent-objects.ts';

/** The test components that the cluster needs. */
export const agentComponents = [
  'root',
  'mount',
  'netns',
  'firewall',
  'kubernetes',
  'busybox',
  'ganesha',
  'fuse',
  'loop',
  'xfs',
] as const;

/** A cluster of two nodes with Stowage on each. */
export interface AgentFixture extends AsyncDisposable {
  readonly cluster: Cluster;
  readonly filer: Filer;
  /** The image of the test pods. */
  readonly busybox: string;
  /** The name of the agent's pod on a node. Nodes count from 0. */
  agentOn(node: number): Promise<string>;
  /** Runs a command in the agent's pod on a node. */
  stowage(node: number, ...words: readonly string[]): Promise<string>;
  /** Creates a volume and returns its id. */
  create(node: number, ...words: readonly string[]): Promise<string>;
}

/**
 * Starts the cluster. The store `files` is shared and allows inline volumes; `disks` and `images` are local to each
 * node.
 */
export async function startAgents(signal: AbortSignal): Promise<AgentFixture> {
  const tar = await buildImage(signal);
  await using stack = new AsyncDisposableStack();
  const stateFolder = '/var/lib/stowage';
  const cluster = stack.use(
    await startCluster(signal, {
      nodes: 2,
      folders: [stateFolder],
      // By default the kubelet queries volume usage once a minute.
      args: { kubelet: ['--volume-stats-agg-period=5s'] },
    }),
  );
  const filer = stack.use(await startFiler(cluster, signal));
  await cluster.importImage(tar);
  const busybox = await importBusybox(cluster, signal);
  const [disks, images] = ['disks', 'images'].map((name) => `${stateFolder}/stores/${name}`);
  for (const node of cluster.nodes) await node.inside('mkdir', '-p', `${disks}`, `${images}`);
  const files = `${filer.uri}&inline=true`;
  const stores = { files, disks: `local://${disks}`, images: `local://${images}?layout=image` };
  await cluster.apply(...agentObjects({ image: imageName, config: { version: 1, stores } }));
  await cluster.kubectl('rollout', 'status', 'daemonset/stowage-agent', '--namespace', namespace, '--timeout=100s');
  const agentOn = async (node: number): Promise<string> => {
    const fieldSelector = `--field-selector=spec.nodeName=${cluster.nodes[node]?.name},status.phase=Running`;
    const labels = Object.entries(agentLabels).map(([key, value]) => `${key}=${value}`);
    const options = ['--selector', labels.join(','), fieldSelector, '--output', 'jsonpath={.items[*].metadata.name}'];
    return await cluster.kubectl('get', 'pods', '--namespace', namespace, ...options);
  };
  const stowage = async (node: number, ...words: readonly string[]): Promise<string> =>
    await cluster.kubectl('exec', '--namespace', namespace, await agentOn(node), '--', 'stowage', ...words);
  const resources = stack.move();
  return {
    cluster,
    filer,
    busybox,
    agentOn,
    stowage,
    create: (node, ...words) => stowage(node, 'volume', 'create', ...words, '--quiet'),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}
