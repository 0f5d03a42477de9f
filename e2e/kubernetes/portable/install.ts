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

export interface Installed {
  /** A description for people. */
  readonly description: string;
  /** Removes what was installed, and leaves everything that existed before. */
  uninstall(): Promise<void>;
}

/** Why nothing was changed. */
export interface Refused {
  readonly why: string;
}

interface Method extends Installed {
  install(): Promise<void>;
}

/** `cluster` installs. `after` removes, and keeps working after the user has interrupted the tests. */
export interface Clusters {
  readonly cluster: AnyCluster;
  readonly after: AnyCluster;
}

const folder = join(repository, 'deploy', 'kubernetes');
const minutes = 60_000;
const definition = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'stores.stowage.dev' },
};
const server = { metadata: { name: 'stowage-nfs', namespace } };
/** The objects of the embedded NFS server, which the plain manifests lack. */
const ofServer: readonly AnyObject[] = [
  { apiVersion: 'storage.k8s.io/v1', kind: 'StorageClass', metadata: { name: 'stowage-nfs' } },
  { apiVersion: 'v1', kind: 'PersistentVolumeClaim', ...server },
  { apiVersion: 'apps/v1', kind: 'StatefulSet', ...server },
];

export const usualHelm = (): string => onPath('helm') ?? '';

/** If a Stowage runs, uses it unchanged. Otherwise installs the chart, or without Helm the plain manifests. */
export async function install(clusters: Clusters, wish: InstallOptions): Promise<Installed | Refused> {
  const { cluster } = clusters;
  const decision = decide(await factsOf(cluster));
  if (decision.kind === 'refuse') return { why: decision.why };
  if (decision.kind === 'use') {
    await ready(cluster, decision.namespace);
    const description = `it was there already, in namespace ${decision.namespace}, and is left as it is`;
    return { description, uninstall: async () => {} };
  }
  const way = wish.helm === '' ? manifestsMethod(clusters, wish.image) : helmMethod(clusters.after, wish);
  try {
    await way.install();
    await ready(cluster, namespace);
    await untilClasses(cluster);
  } catch (cause) {
    await way.uninstall().catch((left: unknown) => {
      throw new AggregateError([cause, left], 'Stowage could not be installed, nor could all of it be removed again');
    });
    throw cause;
  }
  return way;
}

async function factsOf(cluster: AnyCluster): Promise<ClusterFacts> {
  const wide = [...(await manifests()), ...ofServer].filter(({ kind, metadata }) => {
    return metadata.namespace === undefined && kind !== 'Store';
  });
  return {
    deployments: await cluster.list('apps/v1', 'Deployment'),
    objects: await existing(cluster, wide),
    stores: await storesOf(cluster),
    volumes: await cluster.list('v1', 'PersistentVolume'),
  };
}

async function existing(cluster: AnyCluster, things: readonly AnyObject[]): Promise<readonly AnyObject[]> {
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

function helmMethod(after: AnyCluster, { kubeconfig, image, helm, values }: InstallOptions): Method {
  const run = (...words: readonly string[]) =>
    promisify(execFile)(helm, [...words, '--kubeconfig', kubeconfig, '--namespace', namespace], {
      timeout: 5 * minutes,
    });
  // With certificates, because the tests don't know the networks of the nodes.
  const own = ['embeddedNFS.enabled=true', 'embeddedNFS.tls.enabled=true', 'embeddedNFS.volume.size=2Gi'];
  const set = [
    ...[...own, ...values].flatMap((value) => ['--set', value]),
    ...imageValues(image).flatMap((value) => ['--set-string', value]),
  ];
  let made: readonly AnyObject[] = [];
  /** The objects that Helm does not remove. None of them existed before. */
  const kept = async (): Promise<readonly AnyObject[]> => {
    const drivers = (await manifests()).filter(({ kind }) => kind === 'CSIDriver');
    const context = [definition, { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } }];
    const stores = await storesOf(after);
    return [...(await existing(after, [...context, ...drivers])), ...stores, ...(await existing(after, ofServer))];
  };
  return {
    description: 'by the chart',
    install: async () => {
      try {
        await run('install', 'stowage', join(folder, 'chart'), '--create-namespace', ...set);
      } finally {
        made = await kept();
      }
    },
    uninstall: () =>
      removeCreated(after, made, () => run('uninstall', 'stowage', '--ignore-not-found', '--wait', '--timeout', '3m')),
  };
}

function manifestsMethod({ cluster, after }: Clusters, image: string): Method {
  const made: AnyObject[] = [];
  return {
    description: 'by deploy/kubernetes/stowage.yaml',
    install: async () => {
      for (const thing of await manifests((text) => withImage(text, image))) {
        // The API server needs a moment until it serves a new CRD.
        const applied = (): Promise<AnyObject | string> => cluster.apply(thing).catch(String);
        const what = `${thing.kind} ${thing.metadata.name}`;
        const done = await cluster.until(what, applied, (seen) => typeof seen !== 'string', minutes / 2);
        if (typeof done !== 'string') made.push(done);
      }
    },
    uninstall: () => removeCreated(after, made, async () => {}),
  };
}

/**
 * The controller creates a store's class after it has opened the store. The tests of a store without a class would be
 * skipped.
 */
async function untilClasses(cluster: AnyCluster): Promise<void> {
  const missing = async (): Promise<readonly string[]> => {
    const classes = await cluster.list('storage.k8s.io/v1', 'StorageClass');
    const made = new Set(classes.map((one) => (one as { parameters?: Record<string, string> }).parameters?.['store']));
    const stores = await cluster.list('stowage.dev/v1', 'Store');
    return stores
      .filter(({ spec, metadata }) => spec?.['storageClass'] !== undefined && !made.has(metadata.name ?? ''))
      .map(({ metadata }) => metadata.name ?? '');
  };
  await cluster.until('the classes of the stores', missing, (left) => left.length === 0, 2 * minutes);
}

async function ready(cluster: AnyCluster, home: string): Promise<void> {
  const kinds = ['Deployment', 'DaemonSet', 'StatefulSet'] as const;
  const counts = async () =>
    countsOf((await Promise.all(kinds.map((kind) => cluster.list('apps/v1', kind, home)))).flat());
  await cluster.until('that all pods of Stowage are ready', counts, isReady, 5 * minutes);
}
