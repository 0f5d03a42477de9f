import { join } from 'node:path';
import { agnhost, binaries } from '#testbed/kubernetes/build.ts';
import { importSuiteImages } from '#testbed/kubernetes/images.ts';
import { toolPath } from '#testbed/lacks.ts';
import { startFiler } from '../agent-filer.ts';
import { type ChartFixture, chart, startChartFixture } from '../chart-fixture.ts';

/** The test components that this fixture needs. */
export const components = [
  ...(['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'ganesha', 'fuse', 'loop', 'xfs'] as const),
  ...(['helm', 'k8s-e2e', 'ginkgo'] as const),
] as const;

export type ConformanceFixture = Pick<ChartFixture, 'cluster'> & AsyncDisposable;

/** More volumes than all other tests need at the same time. */
const maxVolumes = 40;

/** Everything that Kubernetes' own tests need: a cluster with Stowage, StorageClasses, and the test images. */
export async function startConformanceFixture(signal: AbortSignal): Promise<ConformanceFixture> {
  await using stack = new AsyncDisposableStack();
  const { cluster, helm, namespacedKubectl } = stack.use(await startChartFixture(signal));
  const filer = stack.use(await startFiler(cluster, signal));
  const images = { suite: toolPath('k8s-e2e'), agnhost: agnhost(), kubectl: join(binaries(), 'kubectl') };
  await importSuiteImages(cluster, images, signal);
  const stores = [
    store('files', { ...filer.spec, options: { ...filer.spec.options, inline: 'true' } }),
    store('images', { uri: 'local:///var/lib/stowage/stores/images', options: { layout: 'image', filesystem: 'xfs' } }),
  ];
  // One of the tests creates the maximum number of volumes of a node.
  const volumeLimit = ['--set-json', `agent.extraArgs=["--max-volumes","${maxVolumes}"]`];
  const values = ['--set', 'image.tag=testbed', '--set-json', `stores=${JSON.stringify(stores)}`, ...volumeLimit];
  await helm('install', 'stowage', chart, '--create-namespace', ...values);
  const parts = ['deployment/stowage-controller', 'daemonset/stowage-agent', 'daemonset/stowage-keeper'];
  for (const part of parts) await namespacedKubectl('rollout', 'status', part, '--timeout=150s');
  for (const { storageClass } of stores)
    await cluster.kubectl('wait', '--for=create', `storageclass/${storageClass.name}`, '--timeout=60s');
  const resources = stack.move();
  return { cluster, [Symbol.asyncDispose]: () => resources.disposeAsync() };
}

const store = (name: string, spec: object) => ({ name, ...spec, storageClass: { name: `stowage-${name}` } });
