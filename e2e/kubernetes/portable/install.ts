import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parseAllDocuments } from 'yaml';
import { onPath, repository } from '#testbed/component.ts';
import type { AnyCluster, Thing } from './cluster.ts';

export interface InstallWish {
  readonly kubeconfig: string;
  readonly image: string;
  /** The program; empty: there is none. */
  readonly helm: string;
  /** Further values of the chart, as `--set` takes them. */
  readonly values: readonly string[];
}

export interface Installed {
  /** In words. */
  readonly how: string;
  /** Takes away what was installed, and nothing that was there before. */
  uninstall(): Promise<void>;
}

const namespace = 'stowage-system';
const folder = join(repository, 'deploy', 'kubernetes');
const driverOf = (name: string): Thing => ({ apiVersion: 'storage.k8s.io/v1', kind: 'CSIDriver', metadata: { name } });
const driver = driverOf('file.stowage.dev');
const ownNamespace = { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } };
const definition = {
  ...{ apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition' },
  metadata: { name: 'stores.stowage.dev' },
};
const minutes = 60_000;

export const usualHelm = (): string => onPath('helm') ?? '';

/** One that runs already is used as it is. Otherwise by the chart where there is Helm, or by the plain manifests. */
export async function install(cluster: AnyCluster, wish: InstallWish): Promise<Installed> {
  if ((await cluster.find(driver)) !== undefined) {
    await ready(cluster);
    return { how: 'it was there already, and is left as it is', uninstall: async () => {} };
  }
  const installed = wish.helm === '' ? await byManifests(cluster, wish.image) : await byHelm(cluster, wish);
  try {
    await ready(cluster);
  } catch (cause) {
    await installed.uninstall();
    throw cause;
  }
  return installed;
}

async function byHelm(cluster: AnyCluster, { kubeconfig, image, helm, values }: InstallWish): Promise<Installed> {
  const run = (...words: readonly string[]) =>
    promisify(execFile)(helm, [...words, '--kubeconfig', kubeconfig, '--namespace', namespace], {
      timeout: 5 * minutes,
    });
  const at = image.lastIndexOf(':');
  const [repositoryName, tag] = at > image.lastIndexOf('/') ? [image.slice(0, at), image.slice(at + 1)] : [image, ''];
  const own = [`image.repository=${repositoryName}`, `image.tag=${tag}`, 'embeddedNFS.enabled=true'];
  const size = 'embeddedNFS.volume.size=2Gi';
  const set = [...own, size, ...values].flatMap((value) => ['--set', value]);
  await run('install', 'stowage', join(folder, 'chart'), '--create-namespace', ...set);
  return {
    how: 'by the chart',
    uninstall: async () => {
      // Its volume is one of the default store: what unmounts it and takes it away must still be there.
      await removeServer(cluster);
      await removeStores(cluster);
      await run('uninstall', 'stowage', '--wait', '--timeout', '3m');
      await removeRest(cluster);
    },
  };
}

async function byManifests(cluster: AnyCluster, image: string): Promise<Installed> {
  const text = await readFile(join(folder, 'stowage.yaml'), 'utf8');
  const things = parseAllDocuments(text.replaceAll(/^( +image: )stowage:\S+$/gm, `$1${image}`))
    .map((document) => document.toJS() as Thing | null)
    .filter((thing) => thing !== null);
  const crd = parseAllDocuments(await readFile(join(folder, 'crds', 'stores.yaml'), 'utf8')).map(
    (document) => document.toJS() as Thing,
  );
  for (const thing of [...crd, ...things]) {
    // A kind that was just defined is not there at once.
    const applied = (): Promise<string> =>
      cluster.apply(thing).then(
        () => '',
        (error: unknown) => String(error),
      );
    await cluster.until(`${thing.kind} ${thing.metadata.name}`, applied, (failed) => failed === '', minutes / 2);
  }
  return {
    how: 'by deploy/kubernetes/stowage.yaml',
    uninstall: async () => {
      await removeStores(cluster);
      for (const thing of things.toReversed()) await cluster.remove(thing);
      await removeRest(cluster);
    },
  };
}

/** The embedded NFS server, with its claim. */
async function removeServer(cluster: AnyCluster): Promise<void> {
  const metadata = { name: 'stowage-nfs', namespace };
  await cluster.remove({ apiVersion: 'apps/v1', kind: 'StatefulSet', metadata });
  const pods = async () =>
    (await cluster.list('v1', 'Pod', namespace)).filter(({ metadata: { name } }) => name?.startsWith('stowage-nfs-'));
  await cluster.until('the end of the NFS server', pods, (all) => all.length === 0);
  const volumes = async () =>
    (await cluster.list('v1', 'PersistentVolume')).filter(
      ({ spec }) => (spec?.['claimRef'] as { readonly namespace?: string } | undefined)?.namespace === namespace,
    );
  // It would outlive its claim otherwise.
  for (const { metadata: disk } of await volumes())
    await cluster.apply({
      ...{ apiVersion: 'v1', kind: 'PersistentVolume', metadata: { name: disk.name } },
      spec: { persistentVolumeReclaimPolicy: 'Delete' },
    });
  await cluster.remove({ apiVersion: 'v1', kind: 'PersistentVolumeClaim', metadata });
  await cluster.until('the end of its volume', volumes, (all) => all.length === 0);
  await cluster.remove({ apiVersion: 'storage.k8s.io/v1', kind: 'StorageClass', metadata: { name: metadata.name } });
}

/** With their classes. */
async function removeStores(cluster: AnyCluster): Promise<void> {
  for (const store of await cluster.list('stowage.dev/v1', 'Store')) await cluster.remove(asked(store, 'Store'));
}

async function removeRest(cluster: AnyCluster): Promise<void> {
  // Kept for volumes that outlive an installation; none does here.
  for (const thing of [driver, driverOf('local.stowage.dev')]) await cluster.remove(thing);
  await cluster.remove(ownNamespace);
  await cluster.remove(definition);
  for (const thing of [ownNamespace, definition])
    await cluster.until(
      `the end of ${thing.metadata.name}`,
      () => cluster.find(thing),
      (seen) => seen === undefined,
    );
}

/** What is in a list does not say what it is. */
const asked = (thing: Thing, kind: string, apiVersion = 'stowage.dev/v1'): object => ({
  ...{ apiVersion, kind, metadata: { name: thing.metadata.name, namespace: thing.metadata.namespace } },
});

async function ready(cluster: AnyCluster): Promise<void> {
  const counts = async () => {
    const deployments = await cluster.list('apps/v1', 'Deployment', namespace);
    const sets = await cluster.list('apps/v1', 'DaemonSet', namespace);
    const stateful = await cluster.list('apps/v1', 'StatefulSet', namespace);
    return [
      ...[...deployments, ...stateful].map(({ metadata, spec, status }) => ({
        ...{ name: metadata.name, wanted: spec?.['replicas'], ready: status?.['readyReplicas'] ?? 0 },
      })),
      ...sets.map(({ metadata, status }) => ({
        ...{ name: metadata.name, wanted: status?.['desiredNumberScheduled'], ready: status?.['numberReady'] },
      })),
    ];
  };
  await cluster.until(
    'that all pods of Stowage are ready',
    counts,
    (all) => all.length >= 3 && all.every((one) => one.wanted === one.ready && one.wanted !== 0),
    5 * minutes,
  );
}
