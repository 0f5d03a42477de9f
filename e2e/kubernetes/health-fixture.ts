import { expect } from 'vitest';
import { type Filer, startFiler } from './agent-filer.ts';
import { type ChartFixture, chart, claim, deployment, startChartFixture } from './chart-fixture.ts';

/** A cluster with Stowage, and a shared store `files`. */
export interface HealthFixture extends ChartFixture {
  readonly filer: Filer;
  /**
   * Creates a Deployment and a claim of the same name. Its only pod writes; it starts on that node, and may be
   * rescheduled to another one.
   */
  createApplication(name: string, node: number, annotations?: Readonly<Record<string, string>>): Promise<void>;
  /** Runs a script in the application's pod. */
  exec(name: string, script: string): Promise<string>;
  /** The node of the ready pod. */
  nodeOf(name: string): Promise<string>;
  nodeName(node: number): string;
  /** The Events of an object, newest last. */
  eventsOf(name: string): Promise<string>;
}

export const components = [
  ...(['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'fuse', 'ganesha'] as const),
] as const;
export const pollOptions = { interval: 500, timeout: 150_000 };
export const longTimeoutMs = 400_000;

export async function startHealthFixture(signal: AbortSignal): Promise<HealthFixture> {
  await using stack = new AsyncDisposableStack();
  const fixture = stack.use(await startChartFixture(signal));
  const { cluster } = fixture;
  const filer = stack.use(await startFiler(cluster, signal));
  const store = { name: 'files', ...filer.spec, storageClass: {} };
  const values = ['--set', 'image.tag=testbed', '--set-json', `stores=${JSON.stringify([store])}`];
  await fixture.helm('install', 'stowage', chart, '--create-namespace', ...values);
  for (const workload of ['deployment/stowage-controller', 'daemonset/stowage-agent', 'daemonset/stowage-keeper'])
    await fixture.namespacedKubectl('rollout', 'status', workload, '--timeout=120s');
  const nodeName = (node: number): string => cluster.nodes[node]?.name ?? '';
  const { kubectl } = cluster;
  const resources = stack.move();
  return {
    ...fixture,
    filer,
    nodeName,
    createApplication: async (name, node, annotations = {}) => {
      const baseClaim = claim({ name, storageClassName: 'files', mode: 'ReadWriteOnce' }) as {
        readonly metadata: object;
      };
      const otherNodes = cluster.nodes.filter((_, index) => index !== node).map((otherNode) => otherNode.name);
      await kubectl('cordon', ...otherNodes);
      const metadata = { ...baseClaim.metadata, annotations };
      await cluster.apply({ ...baseClaim, metadata }, deployment(name, fixture.busybox));
      await kubectl('rollout', 'status', `deployment/${name}`, '--timeout=120s');
      await kubectl('uncordon', ...otherNodes);
    },
    exec: async (name, script) => {
      const pod = await readyPod(kubectl, name);
      return await kubectl('exec', pod?.metadata.name ?? '', '--', 'sh', '-c', script);
    },
    nodeOf: async (name) => (await readyPod(kubectl, name))?.spec.nodeName ?? '',
    eventsOf: (name) =>
      kubectl(
        'get',
        'events',
        '--sort-by=.metadata.creationTimestamp',
        `--field-selector=involvedObject.name=${name}`,
        '--output=jsonpath={range .items[*]}{.type} {.reason}: {.message}{"\\n"}{end}',
      ),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

interface ListedPod {
  readonly metadata: { readonly name: string; readonly deletionTimestamp?: string };
  readonly spec: { readonly nodeName?: string };
  readonly status: { readonly conditions?: readonly { readonly type: string; readonly status: string }[] };
}

async function readyPod(kubectl: ChartFixture['cluster']['kubectl'], name: string): Promise<ListedPod | undefined> {
  const list = await kubectl('get', 'pods', `--selector=app=${name}`, '--output=json');
  const { items } = JSON.parse(list) as { readonly items: readonly ListedPod[] };
  expect(items.length).toBeLessThan(5);
  return items.find(
    ({ metadata, status }) =>
      metadata.deletionTimestamp === undefined &&
      status.conditions?.some(({ type, status: is }) => type === 'Ready' && is === 'True') === true,
  );
}
