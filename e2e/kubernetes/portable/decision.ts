// Decides from the objects that exist what the tests do in a cluster. Makes no calls.
import type { AnyObject } from './cluster.ts';

/** Stowage's objects, as the API server lists them. */
export interface ClusterFacts {
  /** Deployments in all namespaces, of any owner. */
  readonly deployments: readonly AnyObject[];
  /** The cluster-scoped objects of an installation except its stores, and its namespace. */
  readonly objects: readonly AnyObject[];
  readonly stores: readonly AnyObject[];
  /** All PersistentVolumes of the cluster. */
  readonly volumes: readonly AnyObject[];
}

export type Decision =
  | { readonly kind: 'use'; readonly namespace: string }
  | { readonly kind: 'install' }
  | { readonly kind: 'refuse'; readonly why: string };

/** The namespace in which these tests and the documentation install Stowage. */
export const usualNamespace = 'stowage-system';
const labels = { name: 'app.kubernetes.io/name', component: 'app.kubernetes.io/component' } as const;

/**
 * If a Stowage runs, the tests use it. They never touch the remains of another installation, because these may refer to
 * data.
 */
export function decide(seen: ClusterFacts): Decision {
  const namespaces = [...new Set(ownOf(seen.deployments).filter(isController).map(namespaceOf))];
  const [namespace] = namespaces;
  if (namespaces.length > 1)
    return { kind: 'refuse', why: `Stowage is in several namespaces: ${namespaces.join(', ')}.` };
  if (namespace !== undefined) return { kind: 'use', namespace: namespace };
  const remains = leftovers(seen);
  return remains.length === 0 ? { kind: 'install' } : { kind: 'refuse', why: refusal(remains) };
}

/** The objects with Stowage's label. The namespace may contain other objects. */
const ownOf = (things: readonly AnyObject[]): readonly AnyObject[] =>
  things.filter(({ metadata }) => metadata.labels?.[labels.name] === 'stowage');

const isController = ({ metadata }: AnyObject): boolean => metadata.labels?.[labels.component] === 'controller';
const namespaceOf = ({ metadata }: AnyObject): string => metadata.namespace ?? '';

interface VolumeSpec {
  readonly claimRef?: { readonly namespace?: string; readonly name?: string; readonly uid?: string };
  readonly csi?: { readonly driver?: string };
}

function leftovers({ objects, stores, volumes }: ClusterFacts): readonly string[] {
  const isOfInstallation = ({ spec }: AnyObject): boolean => {
    const { claimRef, csi } = (spec ?? {}) as VolumeSpec;
    return claimRef?.namespace === usualNamespace || csi?.driver?.endsWith('.stowage.dev') === true;
  };
  return [
    ...objects.map(({ kind, metadata }) => `${kind} ${metadata.name}`),
    ...stores.map(({ metadata }) => `Store ${metadata.name}`),
    ...volumes.filter(isOfInstallation).map(({ metadata, spec }) => {
      const { claimRef } = (spec ?? {}) as VolumeSpec;
      const whose = claimRef === undefined ? 'of no claim' : `of the claim ${claimRef.namespace}/${claimRef.name}`;
      return `PersistentVolume ${metadata.name}, ${whose}`;
    }),
  ];
}

const refusal = (left: readonly string[]): string =>
  [
    'Stowage does not run in this cluster, but these objects of an installation remain:',
    ...left.map((line) => `  ${line}`),
    'Nothing was changed. If you need the objects, install Stowage again as before: the tests use a running Stowage unchanged.',
    'If you need neither the objects nor the data of these volumes, delete the objects. Then run the tests again.',
  ].join('\n');

/** The volumes of a claim. The volume of an earlier claim with the same name has that claim's uid. */
export const volumesOfClaim = (volumes: readonly AnyObject[], { metadata }: AnyObject): readonly AnyObject[] =>
  volumes.filter(({ spec }) => {
    const { uid } = (spec as VolumeSpec | undefined)?.claimRef ?? {};
    return uid !== undefined && uid === metadata.uid;
  });

/** Objects that Kubernetes or these tests delete together with their owners. */
export const ownedBy = (things: readonly AnyObject[], owners: readonly AnyObject[]): readonly AnyObject[] => {
  const uids = new Set(owners.map(({ metadata }) => metadata.uid));
  return things.filter(({ metadata }) => metadata.ownerReferences?.some(({ uid }) => uids.has(uid)) === true);
};

export interface Count {
  readonly name: string | undefined;
  readonly wanted: unknown;
  readonly ready: unknown;
}

/** The numbers of pods. Deployments and StatefulSets have other status fields than DaemonSets. */
export const countsOf = (workloads: readonly AnyObject[]): readonly Count[] =>
  ownOf(workloads).map(({ metadata: { name }, spec, status }) => ({
    name,
    wanted: spec?.['replicas'] ?? status?.['desiredNumberScheduled'],
    ready: status?.['readyReplicas'] ?? status?.['numberReady'] ?? 0,
  }));

/** Whether at least a controller, agents and keepers are ready. */
export const isReady = (counts: readonly Count[]): boolean =>
  counts.length >= 3 && counts.every(({ wanted, ready }) => wanted === ready && wanted !== 0);

/** The image as values of the chart. The values are always strings, because a tag may look like a number. */
export function imageValues(image: string): readonly string[] {
  const [imageName = '', digest] = image.split('@');
  const colon = imageName.lastIndexOf(':');
  const [repository, tag] =
    colon > imageName.lastIndexOf('/') ? [imageName.slice(0, colon), imageName.slice(colon + 1)] : [imageName, ''];
  return [`image.repository=${repository}`, digest === undefined ? `image.tag=${tag}` : `image.digest=${digest}`];
}

/** The plain manifests with another image, which need not have a registry. */
export function withImage(manifests: string, image: string): string {
  const imageLine = /^( +image: )stowage:\S+$/gm;
  if (!imageLine.test(manifests)) throw new Error('the manifests name no image that could be replaced');
  return manifests.replaceAll(imageLine, (_, before: string) => `${before}${image}`);
}
