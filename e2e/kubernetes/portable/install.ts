import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parseAllDocuments } from 'yaml';
import { onPath, repository } from '#testbed/component.ts';
import type { AnyCluster, AnyObject } from './cluster.ts';
import {
  type ClusterFacts,
  countsOf,
  decide,
  imageValues,
  isReady,
  usualNamespace as namespace,
  withImage,
} from './decision.ts';
import { matchingName, removeCreated } from './removal.ts';

export interface InstallOptions {
  readonly kubeconfig: string;
  readonly image: string;
  /** The path of Helm. Empty: Helm is not available. */
  readonly helm: string;
  /** Additional values of the chart, as for `--set`. */
  readonly values: readonly string[];
}

export interface Installation {
  /** A description for people. */
  readonly description: string;
  /** Removes what was installed, and leaves everything that existed before. */
  uninstall(): Promise<void>;
}

/** Why nothing was changed. */
export interface Refusal {
  readonly why: string;
}

interface Method extends Installation {
  install(): Promise<void>;
}

/** `cluster` installs. `after` removes, and keeps working after the user has interrupted the tests. */
export interface Clusters {
  readonly cluster: AnyCluster;
  readonly cleanupCluster: AnyCluster;
}

const folder = join(repository, 'deploy', 'kubernetes');
const minuteMs = 60_000;
const definition = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'stores.stowage.dev' },
};
const server = { metadata: { name: 'stowage-nfs', namespace } };
/** The objects of the embedded NFS server, which the plain manifests lack. */
const serverObjects: readonly AnyObject[] = [
  { apiVersion: 'storage.k8s.io/v1', kind: 'StorageClass', metadata: { name: 'stowage-nfs' } },
  { apiVersion: 'v1', kind: 'PersistentVolumeClaim', ...server },
  { apiVersion: 'apps/v1', kind: 'StatefulSet', ...server },
];

export const helmOnPath = (): string => onPath('helm') ?? '';

/** If a Stowage runs, uses it unchanged. Otherwise installs the chart, or without Helm the plain manifests. */
export async function install(clusters: Clusters, options: InstallOptions): Promise<Installation | Refusal> {
  const { cluster } = clusters;
  const decision = decide(await factsOf(cluster));
  if (decision.kind === 'refuse') return { why: decision.why };
  if (decision.kind === 'use') {
    await waitUntilReady(cluster, decision.namespace);
    const description = `it already runs in namespace ${decision.namespace}, and is used unchanged`;
    return { description, uninstall: async () => {} };
  }
  const method =
    options.helm === '' ? manifestsMethod(clusters, options.image) : helmMethod(clusters.cleanupCluster, options);
  try {
    await method.install();
    await waitUntilReady(cluster, namespace);
    await waitForClasses(cluster);
  } catch (cause) {
    await method.uninstall().catch((left: unknown) => {
      throw new AggregateError(
        [cause, left],
        'Stowage could not be installed, and its objects could not all be removed',
      );
    });
    throw cause;
  }
  return method;
}

async function factsOf(cluster: AnyCluster): Promise<ClusterFacts> {
  const wide = [...(await manifests()), ...serverObjects].filter(({ kind, metadata }) => {
    return metadata.namespace === undefined && kind !== 'Store';
  });
  return {
    deployments: await cluster.list('apps/v1', 'Deployment'),
    objects: await findExisting(cluster, wide),
    stores: await storesOf(cluster),
    volumes: await cluster.list('v1', 'PersistentVolume'),
  };
}

async function findExisting(cluster: AnyCluster, things: readonly AnyObject[]): Promise<readonly AnyObject[]> {
  const found = await Promise.all(things.map((thing) => cluster.find(thing)));
  return found.filter((thing) => thing !== undefined);
}

async function storesOf(cluster: AnyCluster): Promise<readonly AnyObject[]> {
  if ((await cluster.find(definition)) === undefined) return [];
  const [apiVersion, kind] = ['stowage.dev/v1', 'Store'];
  return (await cluster.list(apiVersion, kind)).map((store) => matchingName(apiVersion, kind, store));
}

/** Parses the plain manifests. CRDs come first. */
async function manifests(change = (text: string): string => text): Promise<readonly AnyObject[]> {
  const read = (...path: readonly string[]): Promise<string> => readFile(join(folder, ...path), 'utf8');
  const texts = [await read('crds', 'stores.yaml'), change(await read('stowage.yaml'))];
  return texts
    .flatMap((text) => parseAllDocuments(text))
    .map((document) => document.toJS() as AnyObject | null)
    .filter((thing) => thing !== null);
}

function helmMethod(cleanupCluster: AnyCluster, { kubeconfig, image, helm, values }: InstallOptions): Method {
  const run = (...words: readonly string[]) =>
    promisify(execFile)(helm, [...words, '--kubeconfig', kubeconfig, '--namespace', namespace], {
      timeout: 5 * minuteMs,
    });
  // With certificates, because the tests don't know the networks of the nodes.
  const nfsValues = ['embeddedNFS.enabled=true', 'embeddedNFS.tls.enabled=true', 'embeddedNFS.volume.size=2Gi'];
  const set = [
    ...[...nfsValues, ...values].flatMap((value) => ['--set', value]),
    ...imageValues(image).flatMap((value) => ['--set-string', value]),
  ];
  let createdObjects: readonly AnyObject[] = [];
  /** The objects that Helm does not remove. None of them existed before. */
  const objectsThatHelmLeaves = async (): Promise<readonly AnyObject[]> => {
    const drivers = (await manifests()).filter(({ kind }) => kind === 'CSIDriver');
    const context = [definition, { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } }];
    const stores = await storesOf(cleanupCluster);
    return [
      ...(await findExisting(cleanupCluster, [...context, ...drivers])),
      ...stores,
      ...(await findExisting(cleanupCluster, serverObjects)),
    ];
  };
  return {
    description: 'by the chart',
    install: async () => {
      try {
        await run('install', 'stowage', join(folder, 'chart'), '--create-namespace', ...set);
      } finally {
        createdObjects = await objectsThatHelmLeaves();
      }
    },
    uninstall: () =>
      removeCreated(cleanupCluster, createdObjects, () =>
        run('uninstall', 'stowage', '--ignore-not-found', '--wait', '--timeout', '3m'),
      ),
  };
}

function manifestsMethod({ cluster, cleanupCluster: after }: Clusters, image: string): Method {
  const createdObjects: AnyObject[] = [];
  return {
    description: 'by deploy/kubernetes/stowage.yaml',
    install: async () => {
      for (const thing of await manifests((text) => withImage(text, image))) {
        // The API server needs a moment until it serves a new CRD.
        const applied = (): Promise<AnyObject | string> => cluster.apply(thing).catch(String);
        const what = `${thing.kind} ${thing.metadata.name}`;
        const done = await cluster.waitFor(what, applied, (seen) => typeof seen !== 'string', minuteMs / 2);
        if (typeof done !== 'string') createdObjects.push(done);
      }
    },
    uninstall: () => removeCreated(after, createdObjects, async () => {}),
  };
}

/**
 * The controller creates a store's class after it has opened the store. The tests of a store without a class would be
 * skipped.
 */
async function waitForClasses(cluster: AnyCluster): Promise<void> {
  const missing = async (): Promise<readonly string[]> => {
    const classes = await cluster.list('storage.k8s.io/v1', 'StorageClass');
    const storesWithClass = new Set(
      classes.map((storageClass) => (storageClass as { parameters?: Record<string, string> }).parameters?.['store']),
    );
    const stores = await cluster.list('stowage.dev/v1', 'Store');
    return stores
      .filter(({ spec, metadata }) => spec?.['storageClass'] !== undefined && !storesWithClass.has(metadata.name ?? ''))
      .map(({ metadata }) => metadata.name ?? '');
  };
  await cluster.waitFor('the classes of the stores', missing, (left) => left.length === 0, 2 * minuteMs);
}

async function waitUntilReady(cluster: AnyCluster, installedNamespace: string): Promise<void> {
  const kinds = ['Deployment', 'DaemonSet', 'StatefulSet'] as const;
  const counts = async () =>
    countsOf((await Promise.all(kinds.map((kind) => cluster.list('apps/v1', kind, installedNamespace)))).flat());
  await cluster.waitFor('all pods of Stowage to be ready', counts, isReady, 5 * minuteMs);
}
